"""Rounding or defect? Sound runs, planted faults that must be found in the right ubatch, noise that must not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from typer.testing import CliRunner

from polyseq import Context, Model
from polyseq import errors as e
from polyseq.backends.cpu.plan.plan import CpuPlan
from polyseq.backends.cpu.tiles.tiles import Tiles
from polyseq.backends.cpu.words.tile_words import MOST_ROWS, T, U
from polyseq.backends.reference.plan import ReferencePlan
from polyseq.cli.verify import verify as verify_command
from polyseq.explain.verify import Prompts, row_distance, verify
from polyseq.explain.verify_order import CellOrder
from polyseq.explain.verify_report import FLOOR, OUTLIER, TOLERANCE, Distances, Report, RunResult, judge
from polyseq.explain.verify_runs import Run, all_runs, calls
from polyseq.graph import Inputs
from polyseq.memory import KvView, window_pair
from tiny import tiny_llama
from tiny_gguf import write_tiny_gguf
from tiny_kinds import tiny_gemma3, tiny_lfm2, tiny_mamba

TINY = tiny_llama()
MODEL = Model(TINY.architecture, TINY.weights, TINY.metadata)
RNG = np.random.default_rng(7)
PROMPTS = [RNG.integers(0, 64, n).astype(np.int32) for n in (3, 17, 9, 12)]

RunPlan = Callable[[Any, Inputs], dict[str, NDArray[np.float32]]]
REAL_RUN: RunPlan = ReferencePlan.run
PLANS: dict[str, type[Any]] = {"reference": ReferencePlan, "cpu": CpuPlan}
on_each = pytest.mark.parametrize("backend", sorted(PLANS))


def by_name(report: Report) -> dict[str, RunResult]:
    return {r.run.name: r for r in report.results}


# ---- all is well ---------------------------------------------------------------------------------------


def test_a_sound_model_shows_rounding() -> None:
    seen: list[tuple[str, int, int]] = []
    report = verify(MODEL, PROMPTS, progress=lambda *args: seen.append(args))
    assert report.verdict == "rounding" and "look like rounding" in report.text
    assert (report.n_prompts, report.n_rows) == (4, 41)
    assert {r.n_rows for r in report.results} == {41}
    assert 0 < max(r.relative for r in report.results) < 3e-5
    assert all(r.kl < 1e-8 and not r.n_argmax_changed and r.parting is None for r in report.results)
    done = [n for _, n, _ in seen]
    assert done == sorted(done) and done[-1] == seen[-1][2] == 41 * (1 + len(report.results))
    ways = {(r.run.together, r.run.unified, r.run.interleaved) for r in report.results}
    assert ways == {(False, False, False)} | {(True, u, i) for u in (True, False) for i in (True, False)}
    assert by_name(report)["alone, row by row"].n_ubatches == 41
    assert by_name(report)["unified, small ubatches"].n_ubatches == 6


def test_one_prompt_of_one_token() -> None:
    assert verify(MODEL, [[5]]).verdict in ("equal", "rounding")


def test_not_a_bit_of_difference_is_called_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    def constant(plan: ReferencePlan, inputs: Inputs) -> dict[str, NDArray[np.float32]]:
        found = REAL_RUN(plan, inputs)
        return {name: np.zeros_like(rows) for name, rows in found.items()}

    monkeypatch.setattr(ReferencePlan, "run", constant)
    report = verify(MODEL, PROMPTS)
    assert report.verdict == "equal" and "to the last bit" in report.text


def test_on_cpu_a_sound_model_is_equal_to_the_last_bit() -> None:
    assert verify(MODEL, PROMPTS, backend="cpu").verdict == "equal"


# ---- planted faults ------------------------------------------------------------------------------------


@on_each
def test_two_swapped_output_rows_are_found_in_their_ubatch(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    flat = np.concatenate(PROMPTS)
    (run,) = [r for r in all_runs([len(p) for p in PROMPTS]) if r.name == "unified, small ubatches"]
    target = flat[2 * run.n_ubatch : 3 * run.n_ubatch]  # ubatch 2, with rows of two prompts
    # The cpu backend takes rows as they come, from streams too; no other run has this ubatch.
    cut_so = {run.name, "streams, small ubatches"} if backend == "cpu" else {run.name}
    real_run: RunPlan = PLANS[backend].run

    def swapped(plan: Any, inputs: Inputs) -> dict[str, NDArray[np.float32]]:
        found = real_run(plan, inputs)
        if np.array_equal(inputs.token, target):  # type: ignore[arg-type]
            found["logits"][[4, 6]] = found["logits"][[6, 4]]
        return found

    monkeypatch.setattr(PLANS[backend], "run", swapped)
    report = verify(MODEL, PROMPTS, backend=backend)
    assert report.verdict == "defect"
    i_prompt = np.repeat(np.arange(4), [len(p) for p in PROMPTS])[2 * run.n_ubatch + 4]
    for name, result in by_name(report).items():
        assert result.n_beyond == (2 if name in cut_so else 0)
        where = result.parting and (result.parting.i_call, result.parting.i_ubatch, result.parting.i_row)
        assert where == ((0, 2, 4) if name in cut_so else None)
        assert result.parting is None or result.parting.i_prompt == i_prompt
    assert f"'{sorted(cut_so)[0]}' parts from solo at call 0, ubatch 2, row 4 of 7" in report.text


@pytest.mark.parametrize("n_tokens", [1, 7])
def test_a_single_wrong_bit_is_found_where_bits_are_owed(monkeypatch: pytest.MonkeyPatch, n_tokens: int) -> None:
    """The last bit of one logit, in ubatches of one size, at one token: a kernel that is wrong in a corner."""
    token, logit = int(PROMPTS[1][5]), 17
    faulty: list[int] = []

    def wrong(plan: CpuPlan, inputs: Inputs) -> dict[str, NDArray[np.float32]]:
        found = real_run(plan, inputs)
        if inputs.token is not None and len(inputs.token) == n_tokens:
            for row in np.flatnonzero(inputs.token == token):
                found["logits"][row, logit] = np.nextafter(found["logits"][row, logit], np.float32(np.inf))
                faulty.append(n_tokens)
        return found

    real_run = CpuPlan.run
    monkeypatch.setattr(CpuPlan, "run", wrong)
    report = verify(MODEL, PROMPTS, backend="cpu")
    assert faulty and report.verdict == "defect"
    assert sum(r.n_beyond for r in report.results) == len(faulty)
    assert 0 < max(r.relative for r in report.results) < 1e-6
    found = [r for r in report.results if r.parting is not None]
    assert found and all(r.parting is not None and r.parting.n_tokens == n_tokens for r in found)
    assert "bits that are owed" in report.text


KINDS = {"window": tiny_gemma3(), "recurrent": tiny_mamba(), "hybrid": tiny_lfm2()}


@pytest.mark.parametrize("pad", [1, 16, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_on_cpu_no_sound_memory_gives_a_false_alarm(monkeypatch: pytest.MonkeyPatch, kind: str, pad: int) -> None:
    """With small windows, cells are taken again, and sums run in another order: no defect, and no promise broken."""
    monkeypatch.setattr(window_pair, "WINDOW_PAD", pad)
    rng = np.random.default_rng(3)
    tiny = KINDS[kind]
    prompts = [rng.integers(0, 64, n).astype(np.int32) for n in (40, 7, 100)]
    report = verify(Model(tiny.architecture, tiny.weights, tiny.metadata), prompts, backend="cpu")
    again = kind == "window" and pad < 100
    assert report.verdict == ("rounding" if again else "equal")


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_in_order_until_a_cell_is_taken_again(
    monkeypatch: pytest.MonkeyPatch, kind: str, unified: bool
) -> None:
    monkeypatch.setattr(window_pair, "WINDOW_PAD", 1)
    tiny = KINDS[kind]
    model = Model(tiny.architecture, tiny.weights, tiny.metadata)
    ctx = Context(model, n_ctx=120, n_seq_max=3, n_ubatch=4, n_batch=12, unified=unified, backend="cpu")
    order, taken, seen = CellOrder(ctx.memory), set[tuple[int, int]](), {True: 0, False: 0}
    for i in range(8):
        batch = ctx.batch()
        batch.extend(np.arange(9), seq=[0, 0, 0, 1, 1, 0, 1, 2, 2][i % 3 :] + [2] * (i % 3))
        plan = ctx.plan(batch)
        for ubatch, slot in zip(plan.ubatches, plan.slots, strict=True):
            flags = order.take(ubatch)
            window = getattr(slot, "beside", None) if kind == "window" else slot.kv
            if window is None:  # states only
                assert flags.all()
                continue
            cells = list(zip(window.row_streams.tolist(), window.cells.tolist(), strict=True))
            streams = {stream for stream, cell in cells if (stream, cell) in taken}  # where one is taken again
            again = np.array([stream in streams for stream, _ in cells])
            assert not (flags & again).any()
            taken |= set(cells)
            for flag in flags.tolist():
                seen[flag] += 1
        ctx.decode(batch)
    assert seen[True] if kind != "recurrent" else not seen[True]
    assert bool(seen[False]) == (kind == "window")


def without_a_cell(*, i_prompt: int, pos: int) -> Callable[[KvView, slice], NDArray[np.bool_]]:
    """`KvView.visible` with one entry missing, where sequences have streams."""
    visible = KvView.visible

    def with_a_hole(view: KvView, rows: slice) -> NDArray[np.bool_]:
        seen = visible(view, rows).copy()
        if view.members is None:
            stream = view.streams[view.row_stream[rows]]
            seen[(stream == i_prompt) & (view.pos[rows] == pos), 0] = False
        return seen

    return with_a_hole


def without_a_bit(*, i_prompt: int, pos: int) -> Callable[..., None]:
    """`Tiles.plan` with one bit missing: the first cell of the first block that the row reads."""
    plan = Tiles.plan

    def with_a_hole(tiles: Tiles, view: KvView, **how: Any) -> None:
        plan(tiles, view, **how)
        if view.members is not None:
            return
        for row in np.flatnonzero((view.streams[view.row_stream] == i_prompt) & (view.pos == pos)):
            tile, who = np.argwhere(tiles.tiles[:, T.ROW : T.ROW + MOST_ROWS] == row)[0]
            first, n_runs = tiles.tiles[tile, [T.RUN, T.N_RUNS]]
            (run, *_) = (run for run in tiles.runs[first : first + n_runs] if run[U.WHO] in (-1, who))
            assert tiles.masks[run[U.FIRST], who] & 1
            tiles.masks[run[U.FIRST], who] &= 0xFFFE

    return with_a_hole


@on_each
def test_a_dropped_mask_entry_is_found_in_its_ubatch(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """Where sequences have streams, position 6 of sequence 1 does not see the first cell."""
    if backend == "cpu":
        monkeypatch.setattr(Tiles, "plan", without_a_bit(i_prompt=1, pos=6))
    else:
        monkeypatch.setattr(KvView, "visible", without_a_cell(i_prompt=1, pos=6))
    report = verify(MODEL, PROMPTS, backend=backend)
    assert report.verdict == "defect"
    for result in report.results:
        if not (result.run.together and not result.run.unified):
            assert result.parting is None, result.run
            continue
        assert result.parting is not None
        assert (result.parting.i_prompt, result.parting.pos) == (1, 6)
        assert (result.parting.i_call, result.parting.i_ubatch) == place_of(result.run, backend, i_prompt=1, pos=6)


def place_of(run: Run, backend: str, *, i_prompt: int, pos: int) -> tuple[int, int]:
    """(call, ubatch) of a row, by planning the run's calls one after another."""
    lengths = [len(p) for p in PROMPTS]
    sizes = {"n_batch": run.n_batch, "n_ubatch": run.n_ubatch}
    ctx = Context(MODEL, n_ctx=4 * max(lengths), n_seq_max=4, unified=run.unified, backend=backend, **sizes)
    for i_call, rows in enumerate(calls(run, lengths)):
        batch = ctx.batch()
        for i, p in zip(rows.i_prompt, rows.pos, strict=True):
            batch.add(int(PROMPTS[i][p]), seq=int(i))
        for i_ubatch, ubatch in enumerate(ctx.plan(batch).ubatches):
            for row in ubatch.batch_idxs:
                if (rows.i_prompt[row], rows.pos[row]) == (i_prompt, pos):
                    return i_call, i_ubatch
        ctx.decode(batch)
    raise AssertionError("the row is in no call")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_a_defect(monkeypatch: pytest.MonkeyPatch, bad: float) -> None:
    def broken(plan: ReferencePlan, inputs: Inputs) -> dict[str, NDArray[np.float32]]:
        found = REAL_RUN(plan, inputs)
        if "logits" in found and inputs.token is not None and len(inputs.token) == 41:
            found["logits"][10, 3] = bad
        return found

    monkeypatch.setattr(ReferencePlan, "run", broken)
    report = verify(MODEL, PROMPTS)
    assert report.verdict == "defect"
    assert by_name(report)["unified, one call"].n_beyond == 1
    text = json.dumps(report.to_json(), allow_nan=False)
    assert json.loads(text)["results"][5]["relative"] is None


# ---- noise ---------------------------------------------------------------------------------------------


def noisy(scale: float) -> RunPlan:
    rng = np.random.default_rng(3)

    def run(plan: ReferencePlan, inputs: Inputs) -> dict[str, NDArray[np.float32]]:
        found = REAL_RUN(plan, inputs)
        if "logits" in found:
            found["logits"] += (scale * rng.standard_normal(found["logits"].shape)).astype(np.float32)
        return found

    return run


def test_noise_of_1e_6_is_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReferencePlan, "run", noisy(1e-6))
    report = verify(MODEL, PROMPTS)
    assert report.verdict == "rounding"
    assert report.usual < 1e-5


# F38: drift of a less precise backend is drift once its tolerance is said, and a defect stands out of it still.
def test_a_coarser_backend_needs_a_wider_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReferencePlan, "run", noisy(1e-2))
    assert verify(MODEL, PROMPTS).verdict == "defect"
    report = verify(MODEL, PROMPTS, tolerance=0.1)
    assert report.verdict == "rounding" and report.limit == 0.1


def distances(relative: list[float], *, in_order: bool = True) -> Distances:
    n = len(relative)
    index = np.arange(n)
    values = np.array(relative)
    run = all_runs([n])[0]
    return Distances(
        run, 1, 1, index, index, 0 * index, 0 * index, index, index + n, values, values, values, values > 9,
        index == index if in_order else index < 0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("relative", "limit", "n_beyond"),
    [
        ([0.0, 0.0, 0.0], FLOOR, 0),  # equal
        ([0.0, 1e-8, 1e-8, 9e-6], FLOOR, 0),  # float32 explains this anywhere
        ([1e-8, 1e-8, 1e-8, 2e-5], FLOOR, 1),  # one row alone, far from the others
        ([1e-6] * 9 + [9e-5], 1e-6 * OUTLIER, 0),
        ([1e-6] * 9 + [2e-4], 1e-6 * OUTLIER, 1),
        ([2e-4] * 9 + [9e-4], TOLERANCE, 0),  # coarse everywhere, still within
        ([0.5] * 9 + [1e-7], TOLERANCE, 9),  # a fault that most rows have
    ],
)
def test_the_limit(relative: list[float], limit: float, n_beyond: int) -> None:
    report = judge([distances(relative)], n_prompts=1, n_rows=len(relative))
    assert report.limit == pytest.approx(limit)
    assert report.results[0].n_beyond == n_beyond
    assert (report.verdict == "defect") == bool(n_beyond)


@pytest.mark.parametrize(
    ("relative", "in_order", "verdict", "n_beyond"),
    [
        ([0.0, 0.0], True, "equal", 0),
        ([0.0, 1e-12], True, "defect", 1),  # owed the same bits, however small
        ([1e-12, 9e-4], False, "rounding", 0),  # 100 times the usual distance is no reason where a bit makes that
        ([1e-12, 0.3], False, "unclear", 0),
        ([1e-12, np.inf], False, "defect", 1),
    ],
)
def test_where_the_same_bits_are_owed(relative: list[float], in_order: bool, verdict: str, n_beyond: int) -> None:
    runs = [distances(relative, in_order=in_order)]
    report = judge(runs, n_prompts=1, n_rows=2, same_bits=True)
    assert report.verdict == verdict
    assert (report.results[0].n_beyond, report.results[0].n_unclear) == (n_beyond, int(verdict == "unclear"))
    words = {"equal": "last bit", "defect": "bits that are owed", "unclear": "cannot be told", "rounding": "rounding"}
    assert words[verdict] in report.text
    assert json.loads(json.dumps(report.to_json(), allow_nan=False))["same_bits"] is True


def test_a_row_distance_by_hand() -> None:
    p, q = np.array([1, 2, 3], np.float32), np.array([1, 3, 2.5], np.float32)
    softmax_p, softmax_q = (np.exp(x) / np.exp(x).sum() for x in (p.astype(float), q.astype(float)))
    max_abs, relative, kl, changed = row_distance(p, q)
    assert max_abs == 1 and changed
    assert relative == pytest.approx(1 / np.sqrt(2 / 3))
    assert kl == pytest.approx(float((softmax_p * np.log(softmax_p / softmax_q)).sum()))
    assert row_distance(p, p.copy()) == (0, 0, 0, False)
    assert row_distance(p, p + 100)[2] == pytest.approx(0, abs=1e-9)
    assert row_distance(np.zeros(3, np.float32), q)[1] == 3  # no spread: the difference itself


# ---- what is run ---------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_every_run_has_every_row_once_and_in_order(lengths: list[int]) -> None:
    for run in all_runs(lengths):
        made = calls(run, lengths)
        assert all(0 < len(rows.pos) <= run.n_batch for rows in made)
        if not run.together:
            assert all(len(set(rows.i_prompt.tolist())) == 1 for rows in made)
        i_prompt = np.concatenate([rows.i_prompt for rows in made])
        pos = np.concatenate([rows.pos for rows in made])
        for i, n in enumerate(lengths):
            assert pos[i_prompt == i].tolist() == list(range(n))
        assert len(pos) == sum(lengths)


def test_only_so_many_rows_are_kept() -> None:
    work = Prompts.of([range(100), range(33)], most_rows=20)
    assert sum(int(rows.sum()) for rows in work.compared) <= 20 + 2
    assert all(rows[-1] for rows in work.compared)
    report = verify(MODEL, PROMPTS, most_rows=10)
    assert report.verdict == "rounding"
    assert {r.n_rows for r in report.results} == {int(sum(rows.sum() for rows in Prompts.of(PROMPTS, 10).compared))}


def test_what_cannot_be_run_is_refused() -> None:
    for prompts in ([], [[1], []]):
        with pytest.raises(e.EmptyBatch):
            verify(MODEL, prompts)
    with pytest.raises(e.BadToken):
        verify(MODEL, [[64]])
    with pytest.raises(e.PolyseqError):
        verify(MODEL, PROMPTS, n_ctx=20)


# ---- the command ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def command(*args: object, code: int = 0) -> str:
    app = typer.Typer()
    app.command()(verify_command)
    result = CliRunner().invoke(app, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.stdout + result.stderr
    return result.stdout


def test_the_command_prints_a_table_and_a_sentence(tiny: Path) -> None:
    out = command(tiny, "-p", "hello there", "-p", "a")
    config, *lines = out.splitlines()
    assert config.startswith("backend ") and "kv_type" in config and config.endswith("keeps kv")
    assert lines[0].strip().startswith("2 prompts, ") and lines[1].split()[:3] == ["run", "calls", "ubatches"]
    assert [line for line in lines if line.strip().startswith("unified, interleaved ")]
    assert lines[-1].startswith("The differences look like rounding")
    assert command(tiny).splitlines()[1].strip().startswith("3 prompts, ")


def test_the_command_as_json(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one\ntwo and more\n")
    found = json.loads(command(tiny, "--file", file, "--json"))
    assert found["verdict"] == "rounding" and found["n_prompts"] == 2
    assert found["results"][0]["run"]["name"] == "alone, small ubatches"
    assert found["results"][0]["parting"] is None


def test_a_defect_exits_with_1_and_names_the_ubatch(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KvView, "visible", without_a_cell(i_prompt=1, pos=4))
    out = command(tiny, "-p", "abcdefgh", "-p", "uvwxyz", code=1)
    assert "\nstreams, one call: 2 rows beyond the limit, from call 0, ubatch 0, row 10 of 12" in out
    assert all(len(line) <= 80 for line in out.splitlines()[:12])
    assert "look like a defect" in out and "parts from solo at call 0, ubatch " in out
    found: dict[str, Any] = json.loads(command(tiny, "-p", "abcdefgh", "-p", "uvwxyz", "--json", code=1))
    assert found["verdict"] == "defect"


def test_a_wrong_option_exits_with_2(tiny: Path) -> None:
    command(tiny, "--file", "/no/such/file", code=2)
    assert command(tiny, "-p", "x", "--backend", "abacus", code=1) == ""
