"""A call that fails never happened, for every kind of memory: metadata to the byte, sequences to the bit."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from on_backend import backend_under_test, exact
from polyseq import Batch, Context, Model
from polyseq import errors as e
from polyseq.backends.reference import ops as reference_ops
from polyseq.backends.reference import plan as reference_plan
from polyseq.collector import OutputCollector
from polyseq.memory import window_pair
from polyseq.memory.window_pair import WindowPair
from tiny import tiny_llama
from tiny_bert import tiny_bert
from tiny_kinds import tiny_gemma3, tiny_lfm2, tiny_mamba

WINDOW = tiny_gemma3(n_swa=4).model
KINDS: dict[str, tuple[Model, bool]] = {
    "unified": (tiny_llama().model, True),
    "streams": (tiny_llama().model, False),
    "window, unified": (WINDOW, True),
    "window, streams": (WINDOW, False),
    "recurrent": (tiny_mamba().model, False),
    "hybrid, unified": (tiny_lfm2().model, True),
    "hybrid, streams": (tiny_lfm2().model, False),
}


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch, on_each_backend: None) -> None:
    monkeypatch.setattr(window_pair, "WINDOW_PAD", 1)


def context(kind: str, **sizes: Any) -> Context:
    model, unified = KINDS[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", e.PolyseqWarning)
        return exact(model, **{"n_ctx": 96, "n_seq_max": 2, "n_ubatch": 4, "unified": unified, **sizes})


def rows(ctx: Context, *tokens: list[int]) -> Batch:
    batch = ctx.batch()
    for s, ids in enumerate(tokens):
        if ids:
            batch.extend(ids, seq=s, output=True)
    return batch


def logits(ctx: Context, *tokens: list[int]) -> NDArray[np.float32]:
    n = sum(map(len, tokens))
    outputs = ctx.decode(rows(ctx, *tokens))
    return np.stack([outputs.logits(i) for i in range(n)])


def contents(ctx: Context) -> str:
    """What all cells in use hold, as a checksum."""
    blob = ctx.save()
    n = int.from_bytes(blob[:8], "little")
    checksum: str = json.loads(blob[8 : 8 + n])["__metadata__"]["sha256"]
    return checksum


@contextmanager
def failing(ctx: Context, at: int, *, after: bool) -> Iterator[None]:
    """The compute of ubatch `at` fails, before anything was written or after everything was."""
    plans, n = ctx._plans, -1
    get = plans.get

    class Fails:
        def __init__(self, plan: Any) -> None:
            self.plan = plan

        def run(self, inputs: Any) -> Any:
            nonlocal n
            n += 1
            if n == at and not after:
                raise MemoryError("injected")
            results = self.plan.run(inputs)
            if n == at:
                raise MemoryError("injected")
            return results

    plans.get = lambda key: Fails(get(key))  # type: ignore[method-assign, assignment, return-value]
    try:
        yield
    finally:
        plans.get = get  # type: ignore[method-assign]


PAST = ([3, 1, 4, 1, 5, 9, 2, 6, 5], [2, 7, 1, 8, 2])
CALL = ([3, 5, 8, 9, 7, 9, 3], [8, 1, 8, 2, 8])
AFTER = ([2, 3], [4, 5])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [False, True])
def test_a_failure_in_any_ubatch_is_undone(kind: str, after: bool) -> None:
    clean, ctx = context(kind), context(kind)
    logits(clean, *PAST)
    n_ubatches = len(clean.plan(rows(clean, *CALL)).ubatches)
    assert n_ubatches > 2
    wanted = logits(clean, *CALL), logits(clean, *AFTER)
    logits(ctx, *PAST)
    for at in range(n_ubatches):
        before, held = ctx.memory.columns(), contents(ctx)
        with failing(ctx, at, after=after), pytest.raises(MemoryError):
            logits(ctx, *CALL)
        assert ctx.memory.columns() == before
        assert contents(ctx) == held, "every cell holds what it held, what no row will see again too"
    np.testing.assert_array_equal(logits(ctx, *CALL), wanted[0])
    np.testing.assert_array_equal(logits(ctx, *AFTER), wanted[1])
    ctx.memory.check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_inside_any_ubatch_is_undone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each op of each ubatch, so that some layers are written and others not; on cpu, before each op that it
    leaves to the reference's functions, if there is one: the rest of an ubatch is one native call.
    """
    left = [0]  # ops until one fails; below 0 they are only counted

    def counted(fn: Any) -> Any:
        def op(*args: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise MemoryError("injected")
            return fn(*args)

        return op

    for module in (reference_plan, reference_ops):
        monkeypatch.setattr(module, "OPS", {op: counted(fn) for op, fn in module.OPS.items()})
    clean, ctx = context(kind), context(kind)
    for c in (clean, ctx):
        logits(c, *PAST)
    left[0] = 0
    wanted = logits(clean, *CALL)
    n_ops = -left[0]
    assert n_ops > 100 or backend_under_test() == "cpu"
    before, held = ctx.memory.columns(), contents(ctx)
    for at in range(1, n_ops + 1):
        left[0] = at
        with pytest.raises(MemoryError, match="injected"):
            logits(ctx, *CALL)
        assert ctx.memory.columns() == before and contents(ctx) == held
    left[0] = 0
    np.testing.assert_array_equal(logits(ctx, *CALL), wanted)
    np.testing.assert_array_equal(logits(ctx, *AFTER), logits(clean, *AFTER))


@pytest.mark.parametrize("kind", ["window, unified", "window, streams"])
def test_what_a_call_let_go_before_it_took_it_is_there_again(kind: str) -> None:
    """Cells not in order of positions: one that is given away takes older ones with it, which look free then."""
    ctx = context(kind)
    logits(ctx, [1, 2, 3, 4, 5, 6, 7, 8])
    ctx.memory.rm(0, 5, -1)
    logits(ctx, [6, 7, 8])
    logits(ctx, [9, 10, 11, 12])
    before, held = ctx.memory.columns(), contents(ctx)
    for at in range(4):
        with failing(ctx, at, after=True), pytest.raises(MemoryError):
            logits(ctx, list(range(1, 17)))
        assert ctx.memory.columns() == before and contents(ctx) == held


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_was_finished_can_be_kept(kind: str, at: int) -> None:
    ctx = context(kind, on_error="keep_finished")
    logits(ctx, *PAST)
    before = ctx.memory.columns()
    with failing(ctx, at, after=True), pytest.raises(e.PartlyDecoded if at else MemoryError) as caught:
        logits(ctx, *CALL)
    if at == 0:
        assert ctx.memory.columns() == before
        return
    error = caught.value
    assert isinstance(error, e.PartlyDecoded) and isinstance(error.__cause__, MemoryError) and error.n_ubatches == at
    left: list[list[int]] = []
    for s, (past, call) in enumerate(zip(PAST, CALL, strict=True)):
        last = error.kept.get(s, (0, len(past) - 1))[1]
        assert ctx.memory.pos_max(s) == last
        if s in error.taken_back:
            assert error.taken_back[s] == (last + 1, len(past) + len(call) - 1)
        left.append(call[last + 1 - len(past) :])
    # What is left is as if the call had been two, and the rows of the first are not lost.
    clean = context(kind, on_error="keep_finished")
    logits(clean, *PAST)
    wanted = logits(clean, *CALL)
    at_row = 0
    for call, missing in zip(CALL, left, strict=True):
        n_kept = len(call) - len(missing)
        for i in range(at_row, at_row + len(call)):
            if i < at_row + n_kept:
                np.testing.assert_array_equal(error.outputs.logits(i), wanted[i])
            else:
                with pytest.raises(e.OutputError, match=f"row {i} was never computed: ubatch {at} of .* ended early"):
                    error.outputs.logits(i)
        at_row += len(call)
    logits(ctx, *left)
    np.testing.assert_allclose(logits(ctx, *AFTER), logits(clean, *AFTER), rtol=0, atol=1e-4)


def test_a_call_whose_results_cannot_be_handed_over_has_kept_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ubatches ran, then memory was short."""

    def no_memory(self: OutputCollector) -> None:
        raise MemoryError("injected")

    ctx, clean = context("streams", on_error="keep_finished"), context("streams")
    monkeypatch.setattr(OutputCollector, "finish", no_memory)
    with pytest.raises(e.PartlyDecoded, match=r"after its last ubatch .*; taken back: nothing") as caught:
        logits(ctx, *CALL)
    monkeypatch.undo()
    assert not caught.value.taken_back and ctx.memory.pos_max(0) == len(CALL[0]) - 1
    np.testing.assert_array_equal(caught.value.outputs.all_logits(), logits(clean, *CALL))


def test_of_texts_that_were_pooled_the_finished_ones_are_there(tmp_path: Path) -> None:
    model = Model.load(tiny_bert(tmp_path))
    sizes = {"n_seq_max": 3, "n_ubatch": 8, "pooling": "mean"}
    ctx, clean = exact(model, **sizes, on_error="keep_finished"), exact(model, **sizes)
    texts = ([1, 2, 3, 4, 5], [6, 7, 8, 9, 1], [2, 3, 4, 5, 6, 7])
    wanted = clean.encode(rows(clean, *texts))
    with failing(ctx, 1, after=True), pytest.raises(e.PartlyDecoded) as caught:
        ctx.encode(rows(ctx, *texts))
    outputs = caught.value.outputs
    assert len(caught.value.kept) == len(outputs.seq_ids) == 1
    for s in range(3):
        if s in caught.value.kept:
            np.testing.assert_array_equal(outputs.pooled(s), wanted.pooled(s))
        else:
            with pytest.raises(e.OutputError, match=f"sequence {s} was never computed: ubatch 1 of 3 ended early"):
                outputs.pooled(s)


def test_nan_is_a_failure_where_it_is_looked_for() -> None:
    """What a sequence's own past holds reaches its logits; the rows of the other sequence are sound."""
    ctx = context("streams", nan_guard=True)
    logits(ctx, *PAST)
    cell = np.array([0])
    poison = {
        name: np.full_like(rows, np.nan if rows.dtype == np.float32 else 0)
        for name, rows in ctx._cache.read("kv", 1, cell).items()
    }
    ctx._cache.write("kv", 1, cell, poison)
    before = ctx.memory.columns()
    with pytest.raises(e.NotFinite, match=r"batch row 5 \(sequence 1, position 5\) are not finite"):
        logits(ctx, [1, 2, 3, 4, 5], [6])
    assert ctx.memory.columns() == before
    logits(ctx, [1, 2, 3, 4, 5])


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        ({"pooling": "mean"}, "pooled of sequence 1 are"),
        ({"pooling": "none"}, r"hidden of batch row 1 \(sequence 1, position 2\) are"),
        ({"keep_layers": (1,)}, r"layer\.1 of batch row 1 \(sequence 1, position 2\) are"),
    ],
)
def test_nan_is_looked_for_in_whatever_is_handed_out(wanted: dict[str, Any], named: str) -> None:
    """Embeddings and rows per token too, not logits alone; the poison is in what sequence 1 holds."""
    model, _ = KINDS["unified"]
    ctx = exact(model, n_ctx=64, n_seq_max=2, nan_guard=True, unified=True, **wanted)
    batch = ctx.batch()
    batch.extend([1, 2, 3], seq=0)
    batch.extend([4, 5], seq=1)
    ctx.decode(batch)
    rows_of = ctx._cache.read("kv", 0, np.array([3]))
    poison = {name: np.full_like(row, np.nan if row.dtype == np.float32 else 0) for name, row in rows_of.items()}
    ctx._cache.write("kv", 0, np.array([3]), poison)
    before = ctx.memory.columns()
    batch.clear()
    batch.extend([6], seq=0)
    batch.extend([7, 8], seq=1)
    with pytest.raises(e.NotFinite, match=named):
        ctx.decode(batch)
    assert ctx.memory.columns() == before
    batch.clear()
    batch.extend([6], seq=0)
    ctx.decode(batch)


def test_no_slot_says_how_much_would_fit() -> None:
    for kind in KINDS:
        ctx = context(kind, n_ctx=24, n_batch=24)
        logits(ctx, [1, 2, 3], [4, 5, 6])
        too_many = ([1] * 15, [2] * 8)
        if kind == "recurrent":
            logits(ctx, *too_many)
            continue
        with pytest.raises(e.NoSlot) as caught:
            logits(ctx, *too_many)
        n = caught.value.n_fit
        assert n is not None and 0 < n < 23 and f"first {n} rows would fit" in str(caught.value), kind
        tokens = [*too_many[0], *too_many[1]]
        seqs = [0] * 15 + [1] * 8
        for m, fits in ((n + 1, False), (n, True)):
            batch = ctx.batch()
            batch.extend(tokens[:m], seq=seqs[:m])
            if fits:
                ctx.plan(batch)
            else:
                with pytest.raises(e.NoSlot):
                    ctx.plan(batch)


def test_shared_cells_behind_every_window_are_given_up_before_a_call_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two sequences that share a prefix longer than the window cache has spare cells."""
    retry, retried = WindowPair.retry_batch, []
    monkeypatch.setattr(WindowPair, "retry_batch", lambda *args: retried.append(args) or retry(*args))
    ctx, solo = context("window, unified"), context("window, unified")
    prefix = [1, 2, 3, 4, 5, 6, 7]
    batch = ctx.batch()
    batch.extend(prefix, seq=[{0, 1}] * len(prefix))
    ctx.decode(batch)
    logits(solo, prefix)
    for i in range(6):
        found = logits(ctx, [10 + i] * 4, [20 + i] * 3)
        np.testing.assert_allclose(found[:4], logits(solo, [10 + i] * 4), rtol=0, atol=1e-4)
    assert retried
    before = ctx.memory.columns()
    with failing(ctx, 0, after=True), pytest.raises(MemoryError):
        logits(ctx, [1, 2], [3, 4])
    assert ctx.memory.columns() == before
