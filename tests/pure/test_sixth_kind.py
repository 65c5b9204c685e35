"""A further kind of memory is one file and its registration: here a ring, which only the tests know.

Registered, it is driven through everything that meets a memory; nothing of that was written with it in mind.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import polyseq
import ring
from on_backend import exact
from polyseq import Context
from polyseq import errors as e
from polyseq.cli.app import app
from polyseq.explain import changes as c
from polyseq.explain.advice import advise
from polyseq.explain.perfetto import perfetto
from polyseq.explain.replay import replay, simulate_recorded
from polyseq.explain.rows import rows_of_lengths
from polyseq.explain.simulation import simulate
from polyseq.explain.spec import PlanSpec
from polyseq.explain.timeline import timeline
from polyseq.explain.trace_page import trace_page
from polyseq.explain.trace_summary import summarise
from polyseq.memory import Trial, examples, make_memory, registry
from polyseq.trace import TraceFile, read_trace
from test_histories import Boom, boom, failing
from tiny_kinds import N_VOCAB, tiny_gemma3

N_SWA, N_SEQS, N_CELLS = 8, 3, 16
MODEL = tiny_gemma3(n_layer=2, n_swa=N_SWA, pattern=3).model  # no layer sees everything
RNG = np.random.default_rng(0)
TOKENS = [RNG.integers(0, N_VOCAB, 40) for _ in range(N_SEQS)]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the others, one of which serves these layers too."""
    monkeypatch.setattr(registry, "KINDS", (lambda: ring.KIND, *registry.KINDS))


def context(n_cells: int = N_CELLS, **sizes: object) -> Context:
    ctx = exact(MODEL, **{"n_ctx": N_SEQS * n_cells, "n_seq_max": N_SEQS, "n_batch": 30, "n_ubatch": 8, **sizes})
    assert ctx.kind == "ring"
    return ctx


def feed(ctx: Context, *parts: tuple[int, int, int]) -> np.ndarray:
    """Tokens `[first, last)` of sequence s for each (s, first, last), in one call: the logits of every row."""
    batch = ctx.batch()
    for s, first, last in parts:
        batch.extend(TOKENS[s][first:last], seq=s, pos=np.arange(first, last), output=True)
    outputs = ctx.decode(batch)
    ctx.memory.check()
    return np.stack([outputs.logits(i) for i in range(len(batch))])


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a - b).max() < 1e-4)


@pytest.mark.usefixtures("on_each_backend")
def test_it_computes_what_the_pair_of_caches_does(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [[(0, 0, 8), (1, 0, 3)], [(0, 8, 16), (2, 0, 8), (1, 3, 4)], [(0, 16, 17)], [(0, 17, 40), (2, 8, 12)]]
    got = [feed(ctx, *call) for ctx in [context()] for call in calls]
    monkeypatch.setattr(registry, "KINDS", registry.KINDS[1:])
    pair = exact(MODEL, n_ctx=N_SEQS * 64, n_seq_max=N_SEQS, n_batch=32, n_ubatch=8)
    assert pair.kind == "window"
    assert all(close(a, feed(pair, *call)) for a, call in zip(got, calls, strict=True))


@pytest.mark.usefixtures("on_each_backend")
def test_sequence_operations() -> None:
    ctx = context()
    ctx.memory.add(0, 0, -1, 0)
    first = feed(ctx, (0, 0, 12), (1, 0, 5))
    ctx.memory.cp(0, 2)
    assert ctx.memory.pos_max(2) == 11 and ctx.memory.rm(0, 10, -1)
    with pytest.raises(e.SequenceError, match="cannot take"):
        ctx.memory.rm(0, 2, 5)
    assert close(feed(ctx, (0, 10, 12)), first[10:12])
    batch = ctx.batch()
    batch.extend(TOKENS[0][12:14], seq=2, output=True)
    copied = ctx.decode(batch)
    assert close(np.stack([copied.logits(0), copied.logits(1)]), feed(ctx, (0, 12, 14)))
    with pytest.raises(e.CapabilityError, match="cannot be shifted: a position's cell"):
        ctx.shift_context(0)
    feed(ctx, (0, 14, 30))
    with pytest.raises(e.SequenceError):  # the window before it is gone
        ctx.memory.rm(0, 20, -1)
    assert ctx.memory.reusable(0, 20).why and ctx.memory.reusable(0, 30).n == 30
    assert ctx.optimize() == 0 and ctx.memory.rm(-1) and ctx.memory.n_used == 0


@pytest.mark.usefixtures("on_each_backend")
def test_saved_and_restored_elsewhere() -> None:
    ctx, other = context(), context(n_cells=20)
    feed(ctx, (0, 0, 20), (1, 0, 6))
    other.restore(ctx.save())
    assert close(feed(other, (0, 20, 24), (1, 6, 8)), feed(ctx, (0, 20, 24), (1, 6, 8)))
    ctx.memory.rm(2)
    ctx.restore(other.save(0), 2)
    assert ctx.memory.pos_max(2) == 23
    damaged = bytearray(other.save(1))
    damaged[-1] ^= 1
    with pytest.raises(e.SavedStateError):
        context().restore(bytes(damaged))


@pytest.mark.usefixtures("on_each_backend")
def test_a_call_that_fails_never_happened() -> None:
    ctx, clean = context(), context()
    for either in (ctx, clean):
        feed(either, (0, 0, 16), (1, 0, 3))
    before = ctx.memory.columns()
    with pytest.raises(Boom), failing(ctx, 2, boom):
        feed(ctx, (0, 16, 32))  # overwrites what it would have to see
    assert ctx.memory.columns() == before
    assert close(feed(ctx, (0, 16, 20), (1, 3, 4)), feed(clean, (0, 16, 20), (1, 3, 4)))


def test_a_refusal_says_what_would_do() -> None:
    ctx = context(n_cells=10)
    feed(ctx, (0, 0, 3))
    feed(ctx, (0, 3, 10))
    with pytest.raises(e.NoSlot) as caught:
        feed(ctx, (0, 10, 18))  # the first of eight rows sees seven before it: 15 cells
    advice = advise(caught.value)
    assert "5 cells short" in advice.why
    assert c.ChangeSetting("n_ctx", N_SEQS * 15) in advice.changes
    (shorter,) = [change for change in advice.changes if isinstance(change, c.TruncateBatch)]
    assert shorter.n_rows == 3 == caught.value.n_fit
    feed(ctx, (0, 10, 13))


def test_a_plan_without_a_model() -> None:
    simulation = simulate(rows_of_lengths([9, 4]), PlanSpec(memory="ring", n_ubatch=4, n_ctx=16))
    assert [u.n_tokens for u in simulation.ubatches] == [4, 4, 4, 1] and simulation.slots == ()
    with pytest.raises(e.NoSlot, match="needs 7 cells of stream 0"):
        simulate(rows_of_lengths([4]), PlanSpec(memory="ring", n_ubatch=4, n_ctx=6, held=(5,)))
    done = CliRunner().invoke(app, ["plan", "--lengths", "9,4", "--memory", "ring", "--strategy", "packed", "--json"])
    assert done.exit_code == 0 and '"memory": "ring"' in done.output
    wrong = CliRunner().invoke(app, ["plan", "--lengths", "9", "--memory", "heap"])
    assert "none of ring, unified" in wrong.output


def test_its_trace_is_read(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    with TraceFile(file) as sink:
        ctx = context(trace=sink)
        feed(ctx, (0, 0, 20), (1, 0, 3))
        ctx.memory.cp(1, 2)
        ctx.memory.rm(1)
        feed(ctx, (0, 20, 21))
    found = timeline(read_trace(file))
    assert found.opened.memory == "ring" and "ring memory" in summarise(found).lines()[0]
    assert list(replay(found)) == [] and perfetto(found) and trace_page(found, summarise(found))
    with pytest.raises(e.BadColumn, match="memory ring keeps no cells of every token"):
        simulate_recorded(found, 0)


# ---- what holds for every kind -----------------------------------------------------------------------------


def every_cut() -> Iterator[tuple[str, str]]:
    yield from ((name, cut.name) for name, example in examples().items() for cut in example.cuts)


@pytest.mark.parametrize(("memory", "strategy"), [*every_cut(), ("ring", "packed")])
def test_copies_that_advice_tries_are_cut_as_asked(memory: str, strategy: str) -> None:
    spec = PlanSpec(memory=memory, strategy=strategy, n_ubatch=8)
    settings = spec.memory_settings(spec.sizes(rows_of_lengths([3, 2])))
    made = make_memory(settings)
    assert made.strategy == spec.cut and made.strategy.name == strategy
    copy = Trial(made, settings).copy(n_cells=settings.n_cells + 1)
    assert copy is not None and copy.strategy == spec.cut


def test_an_example_is_of_the_kind_that_gives_it() -> None:
    for kind in registry.kinds():
        for example in kind.examples:
            spec = PlanSpec(memory=example.name)
            settings = spec.memory_settings(spec.sizes(rows_of_lengths([3])))
            assert registry.kind_of(settings) is kind
            assert make_memory(settings).parts == kind.parts(settings)
    assert sum(len(kind.examples) for kind in registry.kinds()) == len(examples()), "a name twice"


SRC = Path(polyseq.__file__).parent
KIND_MODULES = {"full", "hybrid", "kv_cache", "no_memory", "pair", "recurrent", "window_pair"}
PLAIN_CACHE = {"load.py", "replay.py"}  # of explain: they play a plain KV cache, and say so


def test_nobody_asks_a_memory_for_its_kind() -> None:
    names = {"Hybrid", "NoMemory", "Recurrent", "WindowPair"}
    for path in SRC.rglob("*.py"):
        room, *_ = path.relative_to(SRC).parts
        tree = ast.parse(path.read_text())
        if room == "memory" and path.stem in KIND_MODULES | {"registry", "__init__"}:
            continue
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not used & names, path
        if path.name not in PLAIN_CACHE or room != "explain":
            assert "KvCache" not in used, path
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polyseq.memory."):
                assert (node.module or "").split(".")[2] not in KIND_MODULES, path
