"""The cost model: what a fit must find again, JSON there and back, loads by hand, goals that choose differently."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyseq.batch import Batch, Limits, check
from polyseq.context import Context
from polyseq.context_sizes import effective_sizes
from polyseq.errors import ContextError
from polyseq.explain.compare import compare
from polyseq.explain.cost import BYTE_FEATURES, TIME_FEATURES, ByteModel, CostModel, Observation
from polyseq.explain.effective import Asked, effective, effective_sizes_of
from polyseq.explain.load import Choice, Load, simulate_load
from polyseq.explain.nonneg import nonnegative
from polyseq.explain.recommend import AS_FAST, FAST_ENOUGH, GOALS, Goal, Recommendation, candidates, recommend
from polyseq.explain.settings import Settings
from polyseq.explain.shapes import UbatchShape, apply_plan, shapes_of
from polyseq.explain.simulation import simulate
from polyseq.explain.spec import PlanSpec
from polyseq.memory import KvCache, MemoryPlan
from polyseq.model import Model
from tiny_kinds import tiny_gemma3

PER_ROW = CostModel(dict.fromkeys(TIME_FEATURES, 0.0) | {"ubatch": 0.05, "rows from 1": 0.01, "visible": 1e-6})
BYTES = ByteModel(dict(zip(BYTE_FEATURES, (0.0, 1000.0, 4000.0, 0.0), strict=True)))
MODEL = CostModel(
    dict(zip(TIME_FEATURES, [0.04, *[0.01, 0.01, 5e-3, 3e-3, 2e-3, 2e-3, 2e-3], 3e-3, *[1e-3] * 3], strict=False))
    | {"visible": 3e-6, "hidden": 2e-6, "read": 3e-6, "seqs, unified": 1e-3, "seqs, streams": 1e-4}
)


def shape(n_tokens: int, n_outputs: int = 1, n_past: int = 0, n_seqs: int = 1) -> UbatchShape:
    n_visible = n_tokens * n_past + n_tokens * (n_tokens + 1) // 2
    return UbatchShape(n_tokens, n_outputs, n_visible, n_visible // 3, n_past + n_tokens, n_seqs, True)


# ---- least squares -----------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 14))
def test_no_coefficient_is_negative_and_none_can_be_improved(seed: int, m: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.random((m, n)) * 10.0 ** rng.integers(-6, 6, n), rng.normal(size=m)
    x = nonnegative(a, b)
    slope = (a / np.linalg.norm(a, axis=0)).T @ (b - a @ x)
    assert (x >= 0).all()
    assert slope.max() < 1e-7 and np.abs(slope[x > 0]).max(initial=0) < 1e-7


def test_a_column_of_zeros_costs_nothing() -> None:
    x = nonnegative(np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([3.0, 6.0]))
    assert x.tolist() == pytest.approx([3.0, 0.0])


# ---- the model ---------------------------------------------------------------------------------------------


def test_a_fit_predicts_calls_that_it_has_not_seen() -> None:
    rng = np.random.default_rng(0)
    calls = [
        shape(n, min(n_outputs, n), n_past, min(n, n_seqs))
        for n in (1, 2, 4, 8, 16, 48, 64, 128, 256, 512)
        for n_outputs in (0, 1, 4, 16)
        for n_past in (0, 200)
        for n_seqs in (1, 4)
    ]
    seen = [Observation((s,), tuple(MODEL.seconds(s) * rng.uniform(0.97, 1.03, 5))) for s in calls]
    fitted = CostModel.fit(seen)
    for new in (shape(5, 5, 77, 4), shape(100, 1, 30), shape(300, 2, 500, 3), shape(33, 8)):
        assert fitted.seconds(new) == pytest.approx(MODEL.seconds(new), rel=0.1)
    assert fitted.seconds(shape(300), shape(40)) == pytest.approx(MODEL.seconds(shape(300), shape(40)), rel=0.1)


def test_one_slow_repeat_changes_nothing() -> None:
    calls = [shape(n) for n in (1, 4, 16, 64, 256)]
    clean = CostModel.fit([Observation((s,), (PER_ROW.seconds(s),) * 3) for s in calls])
    disturbed = CostModel.fit([Observation((s,), (PER_ROW.seconds(s), 9.0, PER_ROW.seconds(s))) for s in calls])
    assert clean == disturbed


def test_bytes_follow_the_largest_ubatch_with_all_outputs() -> None:
    shapes = [shape(n, o) for n in (1, 16, 64) for o in (0, 1)]
    fitted = ByteModel.fit(shapes, [BYTES.n_bytes(s) for s in shapes])
    assert fitted.n_bytes(shape(32, 1)) == pytest.approx(36_000, rel=1e-3)
    assert fitted.n_bytes(shape(32, 1), shape(8, 8)) == pytest.approx(32_000 + 9 * 4000, rel=1e-3)


def test_json_there_and_back() -> None:
    assert CostModel.from_json(json.loads(json.dumps(MODEL.to_json()))) == MODEL
    assert ByteModel.from_json(json.loads(json.dumps(BYTES.to_json()))) == BYTES


@pytest.mark.parametrize("number", [-1, True, "3", float("inf"), float("nan"), None])
def test_what_is_no_cost_is_refused(number: object) -> None:
    value = {"seconds_per": MODEL.to_json()["seconds_per"] | {"ubatch": number}}
    with pytest.raises(ContextError, match="ubatch"):
        CostModel.from_json(value)


def test_nothing_measured_is_refused() -> None:
    with pytest.raises(ContextError):
        CostModel.fit([])
    with pytest.raises(ContextError):
        CostModel.from_json({"seconds_per": {"call": 1.0}})


# ---- shapes ------------------------------------------------------------------------------------------------


def planned(cache: KvCache, seqs: list[int], n_ubatch: int = 64) -> MemoryPlan:
    batch = Batch()
    batch.extend(np.zeros(len(seqs), np.int32), seq=seqs, output=True)
    plan = cache.init_batch(check(batch, Limits(n_vocab=1, n_seq_max=cache.n_seq_max), cache.ranges), n_ubatch)
    assert isinstance(plan, MemoryPlan)
    return plan


def test_shapes_count_what_rows_see() -> None:
    streams = KvCache(n_cells=16, n_seq_max=3, unified=False)
    apply_plan(streams, planned(streams, [0] * 5 + [1] * 5))
    before = streams.map().to_json()
    (step,) = shapes_of(streams, planned(streams, [0, 1]))
    assert step == UbatchShape(2, 2, 12, 0, 12, 2, False)
    assert streams.map().to_json() == before
    unified = KvCache(n_cells=48, n_seq_max=3, unified=True)
    apply_plan(unified, planned(unified, [0] * 5 + [1] * 5))
    (step,) = shapes_of(unified, planned(unified, [0, 1]))
    assert step == UbatchShape(2, 2, 12, 2 * 12 - 12, 12, 2, True)


# ---- loads -------------------------------------------------------------------------------------------------


def test_one_user_by_hand() -> None:
    load = Load(1, prompt=10, answer=8, rounds=1)
    n = load.answer_of(0, 0)
    found = simulate_load(load, Choice(1, 4, 4, unified=False), PER_ROW, BYTES, 100, packed=False)
    prompt = sum(PER_ROW.seconds(shape(k, 0, past)) for k, past in ((4, 0), (4, 4), (2, 8)))
    steps = [PER_ROW.seconds(shape(1, 1, past)) for past in range(10, 10 + n - 1)]
    assert (found.n_calls, found.n_ubatches) == (3 + n - 1, 3 + n - 1)
    assert found.first_token_s == pytest.approx(prompt)
    assert found.stall_s == pytest.approx(max(steps))
    assert found.tokens_per_s == pytest.approx(n / (prompt + sum(steps)))
    assert found.n_bytes == found.n_ctx * 100 + 2 * 1000 + 4000


@pytest.mark.parametrize("unified", [True, False])
def test_a_long_prompt_stalls_the_others_unless_n_batch_bounds_it(unified: bool) -> None:
    load = Load(4, prompt=500, answer=40)
    small = simulate_load(load, Choice(4, 32, 32, unified), MODEL, BYTES, 100, packed=False)
    large = simulate_load(load, Choice(4, 2048, 512, unified), MODEL, BYTES, 100, packed=False)
    assert large.stall_s > 3 * small.stall_s
    assert large.n_ubatches < small.n_ubatches
    n_tokens = sum(load.answer_of(u, r) for u in range(4) for r in range(2))
    for found in (small, large):  # every token was answered, whatever the sizes
        assert n_tokens / found.tokens_per_s >= found.first_token_s


def test_where_rows_of_streams_are_taken_as_they_come_a_mixed_call_is_one_ubatch() -> None:
    load, choice = Load(4, prompt=20, answer=40), Choice(4, 64, 64, unified=False)
    cut, packed = (simulate_load(load, choice, MODEL, BYTES, 100, packed=p) for p in (False, True))
    assert packed.n_ubatches == packed.n_calls and cut.n_ubatches > cut.n_calls


def test_a_load_that_cannot_be_is_refused() -> None:
    with pytest.raises(ContextError, match="users"):
        Load(0, 1, 1)
    with pytest.raises(ContextError, match="n_batch 4"):
        simulate_load(Load(8, 5, 5), Choice(8, 4, 4, unified=True), PER_ROW, BYTES, 1, packed=False)


# ---- the choice --------------------------------------------------------------------------------------------


@cache
def chosen(goal: Goal) -> Recommendation:
    return recommend(
        Load(4, 120, 12, rounds=1),
        goal,
        cost=MODEL,
        memory_use=BYTES,
        kv_bytes_per_cell=1000,
        most_rows=256,
        packed=False,
    )


def test_each_goal_gets_what_it_asks_for() -> None:
    best = {goal: chosen(goal).best for goal in GOALS}
    outcomes = chosen("stall").outcomes
    fastest = max(o.tokens_per_s for o in outcomes)
    assert best["throughput"].tokens_per_s >= AS_FAST * fastest
    able = [o for o in outcomes if o.tokens_per_s >= FAST_ENOUGH * fastest]
    assert best["stall"].stall_s <= 1.05 * min(o.stall_s for o in able)
    assert best["memory"].n_bytes <= 1.05 * min(o.n_bytes for o in able)
    assert best["stall"].stall_s < best["throughput"].stall_s
    assert f"{len(able)} of {len(outcomes)}" in chosen("stall").reason


def test_candidates_go_together() -> None:
    found = candidates(Load(40, 300, 10), most_rows=256)
    assert len(set(found)) == len(found) and {c.n_seq_max for c in found} == {20, 40}
    assert all(c.n_ubatch <= min(c.n_batch, 256) and c.n_seq_max <= c.n_batch for c in found)
    with pytest.raises(ContextError, match="257 users"):
        candidates(Load(257, 1, 1), most_rows=8)
    with pytest.raises(ContextError, match="goal"):
        chosen("speed")  # type: ignore[arg-type]


# ---- the settings file -------------------------------------------------------------------------------------

SETTINGS = Settings("m.gguf", "reference", 640, 8, 256, 64, False, MODEL, BYTES, 100, {"users": 8}, {"n_cpus": 2})


def test_a_settings_file_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    SETTINGS.write(path)
    assert Settings.read(path) == SETTINGS
    assert SETTINGS.differs_from({"n_cpus": 2, "python": "3"}) == []
    assert SETTINGS.differs_from({"n_cpus": 4}) == ["measured with n_cpus 2, here it is 4"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "another"}, "format"),
        ({"model": ""}, "model"),
        ({"sizes": {}}, "unified"),
        ({"sizes": {"unified": True, "n_ctx": 0}}, "n_ctx"),
        ({"cost": {}}, "seconds_per"),
        ({"machine": []}, "machine"),
    ],
)
def test_what_is_no_settings_file_is_refused(change: dict[str, object], says: str, tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(SETTINGS.to_json() | change))
    with pytest.raises(ContextError, match=says):
        Settings.read(path)
    path.write_bytes(b"\xff{")
    with pytest.raises(ContextError, match=r"settings\.json"):
        Settings.read(path)


# ---- the effective configuration ---------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::polyseq.errors.PolyseqWarning")
def test_each_setting_says_what_it_became_and_why() -> None:
    asked = Asked(n_ctx=100, n_seq_max=3, n_batch=500, n_ubatch=0, unified=False, backend="auto")
    sizes = effective_sizes(n_ctx=100, n_ctx_train=64, n_seq_max=3, n_batch=500, n_ubatch=0, unified=False)
    found = effective_sizes_of(sizes, asked, backend="reference")
    rows = {s.name: (s.asked, s.effective, s.why) for s in found.settings}
    assert rows["n_batch"] == (500, 100, "at most n_ctx 100")
    assert rows["n_ubatch"] == (0, 100, "0: as n_batch")
    assert rows["n_ctx_seq"] == (None, 33, "n_ctx 100 over 3 streams, 1 cells unused")
    assert rows["backend"] == ("auto", "reference", "auto: the best there is here")
    assert rows["n_seq_max"] == (3, 3, "") and rows["memory"] == ("streams", "streams", "")
    assert len(found.lines()) == 8 and all(len(line) <= 80 for line in found.lines())
    assert found.to_json()["notes"] == list(sizes.notes)


def test_a_context_says_what_computes_and_what_it_keeps() -> None:
    tiny = tiny_gemma3()
    model = Model(tiny.architecture, tiny.weights, tiny.metadata)
    ctx = Context(model, n_ctx=32, backend="reference")
    rows = {s.name: (s.effective, s.why) for s in effective(ctx, Asked()).settings}
    assert rows["keeps"] == ("window", "by what the model's layers keep")
    assert rows["kv_type"] == ("f32", "left out: the backend's own") and rows["n_threads"][0] == "-"
    ctx = Context(model, n_ctx=32, backend="cpu", n_threads=1, kv_type="int8")
    rows = {s.name: (s.effective, s.why) for s in effective(ctx, Asked(n_threads=1, kv_type="int8")).settings}
    assert (rows["n_threads"], rows["kv_type"]) == ((1, ""), ("int8", ""))
    rows = {s.name: (s.effective, s.why) for s in effective(ctx, Asked(from_file="s.json")).settings}
    assert (rows["n_threads"], rows["kv_type"]) == ((1, "left out: from s.json"), ("int8", "left out: from s.json"))


def test_what_is_left_out_says_where_it_comes_from() -> None:
    sizes = effective_sizes(n_ctx=0, n_ctx_train=64, n_seq_max=1, n_batch=None, n_ubatch=None, unified=True)
    why = {s.name: s.why for s in effective_sizes_of(sizes, Asked(n_ctx=0), backend="reference").settings}
    assert why["n_ctx"] == "0: what the model was trained for"
    assert why["n_ubatch"] == "left out: the smaller of 512 and n_batch 64"
    from_file = replace(Asked(), from_file="s.json")
    assert all(
        "s.json" in s.why
        for s in effective_sizes_of(sizes, from_file, backend="reference").settings
        if s.name != "n_ctx_seq"
    )


# ---- the same batch, otherwise -----------------------------------------------------------------------------


def test_a_comparison_costs_each_way() -> None:
    batch = Batch()
    batch.extend(np.zeros(6, np.int32), seq=[0, 1, 1, 1, 1, 1], output=[True, *[False] * 4, True])
    found = {c.name: c for c in compare(simulate(batch, PlanSpec(memory="unified", n_ubatch=4, held=(9,))), PER_ROW)}
    n_visible = 10 + 1 + 2 + 3 + 4 + 5  # in ubatches of 4 rows and 2; PER_ROW charges only the second row of each
    assert found["simple"].seconds == pytest.approx(2 * 0.05 + 2 * 0.01 + n_visible * 1e-6)
    assert found["token-budget"].seconds == pytest.approx(found["simple"].seconds)
    assert found["prefill-adder"].blocks == (4, 1, 1)
    assert found["prefill-adder"].seconds == pytest.approx(3 * 0.05 + 0.01 + n_visible * 1e-6)
    assert all(c.seconds is None for c in compare(simulate(batch, PlanSpec(held=(9,)))))
