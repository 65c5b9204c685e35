"""Why not? Every refusal kind explains itself, and applying its advice makes the call succeed.

An `Attempt` is a call that can be made again from the start: settings, what happened before, rows. `apply` does to it
what a change says, so each change of each advice is tried on a real context.
"""

from __future__ import annotations

import inspect
import json
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyseq import Batch, Context, Model
from polyseq import errors as e
from polyseq.batch import Limits, check
from polyseq.explain import changes as c
from polyseq.explain.advice import Advice, advise
from polyseq.memory import KvCache, KvLayer, MemorySettings, Refused, make_memory
from polyseq.split import Equal, split_all
from polyseq.trace import Computed, Event
from tiny import tiny_llama
from tiny_bert import N_CTX, tiny_bert
from tiny_kinds import tiny_gemma3, tiny_lfm2, tiny_mamba

TINY = tiny_llama()
MODEL = Model(TINY.architecture, TINY.weights, TINY.metadata)
N_VOCAB = MODEL.architecture.hparams.n_vocab
ZEROS = np.zeros(32, np.float32)

Row = dict[str, Any]


class StepsOneToFour:
    """A context without a model, for what no tiny llama takes: M-RoPE positions, rows with both, hidden states."""

    def __init__(self, *, n_pos: int = 1, allow_mixed: bool = False) -> None:
        self.settings = MemorySettings(
            layers=(KvLayer(1, 1, 1),), n_cells=32, n_seq_max=4, unified=True, n_ubatch=8, n_pos=n_pos
        )
        self.memory = make_memory(self.settings)
        self.limits = Limits(n_vocab=N_VOCAB, n_seq_max=4, n_pos=n_pos, allow_mixed=allow_mixed)

    def decode(self, batch: Batch) -> None:
        plan = self.memory.init_batch(check(batch, self.limits, self.memory.ranges), self.settings.n_ubatch)
        assert not isinstance(plan, e.NoSlot)
        for ubatch, slot in zip(plan.ubatches, plan.slots, strict=True):
            self.memory.apply(ubatch, slot)


@dataclass(frozen=True)
class Attempt:
    """`make(**settings)`, then `before`, then one decode for each list of rows, then a look at output `ask`."""

    calls: tuple[list[Row], ...] = ()
    settings: dict[str, Any] = None  # type: ignore[assignment]
    before: tuple[Callable[[Any], object], ...] = ()
    ask: int | None = None
    make: Callable[..., Any] = lambda **s: Context(MODEL, **s)

    def go(self) -> Advice | None:
        """None where it worked, else the advice."""
        asked = {"n_ctx": 32, "n_seq_max": 4, **(self.settings or {})} if self.make is ATTEMPT.make else self.settings
        batch = ctx = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", e.PolyseqWarning)
                ctx = self.make(**(asked or {}))
            for step in self.before:
                step(ctx)
            for rows in self.calls:
                batch = Batch(n_pos=ctx.memory.n_pos)
                for row in rows:
                    batch.add(**row)
                outputs = ctx.decode(batch)
            if self.ask is not None:
                outputs.logits(self.ask)
        except e.PolyseqError as error:
            if isinstance(ctx, StepsOneToFour):  # steps called by hand: nobody tells the error what it was about
                assert batch is not None
                return advise(error, refused=Refused(batch, ctx.memory, ctx.settings))
            return advise(error)
        return None


ATTEMPT = Attempt()


def apply(change: c.Change, attempt: Attempt) -> Attempt:
    """What a caller would do."""
    (rows,) = attempt.calls or ([],)
    match change:
        case c.ChangeSetting(name, value):
            return replace(attempt, settings={**(attempt.settings or {}), name: value})
        case c.RemoveRange(seq_id, p0, p1):
            return replace(attempt, before=(*attempt.before, lambda ctx: ctx.memory.rm(seq_id, p0, p1)))
        case c.RemoveRanges(ranges):
            for one in ranges:
                attempt = apply(one, attempt)
            return attempt
        case c.CallAgain():
            return replace(attempt, before=attempt.before[:1])  # without what disturbed it
        case c.CopySequence(src, dst):
            return replace(attempt, before=(*attempt.before, lambda ctx: ctx.memory.cp(src, dst)))
        case c.TruncateBatch(n):
            return replace(attempt, calls=(rows[:n],))
        case c.TruncateSequences(n_rows):
            left = dict(n_rows)
            kept = []
            for row in rows:
                left[row["seq"]] -= 1
                if left[row["seq"]] >= 0:
                    kept.append(row)
            return replace(attempt, calls=(kept,))
        case c.SplitBatch(n_rows):
            assert sum(n_rows) == len(rows)
            ends = np.cumsum(n_rows)
            return replace(attempt, calls=tuple(rows[end - n : end] for n, end in zip(n_rows, ends, strict=True)))
        case c.DropRows(dropped):
            return replace(attempt, calls=([r for i, r in enumerate(rows) if i not in dropped],))
        case c.ContinueFrom(start, pos):
            seq, moved = rows[start].get("seq", 0), 0
            out = []
            for i, row in enumerate(rows):
                if i >= start and row.get("seq", 0) == seq:
                    n_pos = 4 if row.get("embd") is not None and attempt.make is not ATTEMPT.make else 1
                    at = None if pos is None else pos + moved if n_pos == 1 else [pos + moved] * n_pos
                    row, moved = {**row, "pos": at}, moved + 1
                out.append(row)
            return replace(attempt, calls=(out,))
        case c.SortRows(seq_id):
            places = [i for i, r in enumerate(rows) if r["seq"] == seq_id]
            out = list(rows)
            for i, row in zip(places, sorted((rows[i] for i in places), key=lambda r: r["pos"]), strict=True):
                out[i] = row
            return replace(attempt, calls=(out,))
        case c.SetSequence(i, seq_id):
            return replace(attempt, calls=([{**r, "seq": seq_id} if j == i else r for j, r in enumerate(rows)],))
        case c.RequestOutput(i):
            return replace(attempt, calls=([{**r, "output": True} if j == i else r for j, r in enumerate(rows)],))


def tokens(n: int, seq: Any = 0, pos: int | None = None) -> list[Row]:
    return [{"token": i, "seq": seq, "pos": None if pos is None else pos + i} for i in range(n)]


def fed(n: int, seq: Any = 0, pos: int | None = None) -> Callable[[Any], object]:
    def feed(ctx: Any) -> None:
        batch = Batch(n_pos=ctx.memory.n_pos)
        for row in tokens(n, seq, pos):
            batch.add(**row)
        ctx.decode(batch)

    return feed


STREAMS = {"n_ctx": 16, "n_seq_max": 2}
UNIFIED = {**STREAMS, "unified": True}
set_to, remove = c.ChangeSetting, c.RemoveRange

# name: (error kind, attempt, the changes in order)
CASES: dict[str, tuple[type[e.PolyseqError], Attempt, list[c.Change]]] = {
    "too many sequences": (
        e.BadSeqCount,
        Attempt(settings={"n_ctx": 512, "n_seq_max": 300}),
        [set_to("n_seq_max", 256)],
    ),
    "no sequences": (e.BadSeqCount, Attempt(settings={"n_seq_max": 0}), [set_to("n_seq_max", 1)]),
    "more rows than n_batch": (
        e.BatchTooLarge,
        Attempt((tokens(10),), {"n_ctx": 32, "n_seq_max": 1, "n_batch": 4}),
        [c.SplitBatch((4, 4, 2)), set_to("n_batch", 10)],
    ),
    "more rows than n_ctx": (
        e.BatchTooLarge,
        Attempt((tokens(4, 0) + tokens(4, 1),), {"n_ctx": 7, "n_batch": 5, "unified": True}),
        [c.TruncateBatch(5)],
    ),
    "more rows than n_batch, shared": (
        e.BatchTooLarge,
        Attempt((tokens(6, {0, 1}),), {"n_batch": 4, "unified": True}),
        [c.SplitBatch((4, 2)), set_to("n_batch", 6)],
    ),
    "tokens beside embeddings": (
        e.ContentMix,
        Attempt(([{"token": 1}, {"embd": ZEROS}, {"embd": ZEROS}, {"token": 2}],)),
        [set_to("allow_mixed", True), c.SplitBatch((1, 2, 1))],
    ),
    "rows with both beside others": (
        e.ContentMix,
        Attempt(([{"token": 1, "embd": ZEROS}, {"token": 2}],), make=StepsOneToFour),
        [c.SplitBatch((1, 1))],
    ),
    "texts longer than n_ubatch": (
        e.SequenceTooLong,
        Attempt((tokens(3, 0) + tokens(6, 1),), {"n_ctx": 32, "n_seq_max": 2, "n_ubatch": 2, "pooling": "mean"}),
        [set_to("n_ubatch", 6)],
    ),
    "a sequence id too high": (e.BadSeqId, Attempt((tokens(2, 5),)), [set_to("n_seq_max", 6)]),
    "a negative sequence id": (e.BadSeqId, Attempt((tokens(1, seq=[])+tokens(1),)), [c.SetSequence(0, 0)]),
    "a position below 0": (
        e.NegativePosition,
        Attempt(([{"token": 1, "seq": 0}, {"token": 2, "seq": 0, "pos": -1}],)),
        [c.ContinueFrom(1, None)],
    ),
    "a token too high": (e.BadToken, Attempt(([{"token": 1}, {"token": N_VOCAB}],)), [c.DropRows((1,))]),
    "a row without content": (e.NoContent, Attempt(([{"token": 1}, {}],)), [c.DropRows((1,))]),
    "an embedding with NaN": (
        e.BadEmbedding,
        Attempt(([{"embd": ZEROS}, {"embd": ZEROS * np.nan}],)),
        [c.DropRows((1,))],
    ),
    "hidden states on some rows": (
        e.StateMix,
        Attempt(([{"token": 1}, {"token": 1, "state": ZEROS}],), make=StepsOneToFour),
        [c.TruncateBatch(1)],
    ),
    "a position memory holds": (
        e.MemoryPosition,
        Attempt((tokens(2, 1, pos=3),), before=(fed(5, 1),)),
        [c.ContinueFrom(0, 5), remove(1, 3, -1)],
    ),
    "a position too far": (
        e.MemoryPosition,
        Attempt((tokens(2, 1, pos=7),), before=(fed(5, 1),)),
        [c.ContinueFrom(0, 5)],
    ),
    "a hole in the positions": (
        e.PositionGap,
        Attempt((tokens(2, 0, pos=0) + tokens(2, 1, pos=4) + tokens(3, 0, pos=5),)),
        [c.ContinueFrom(4, 2)],
    ),
    "positions backwards": (
        e.PositionDecreasing,
        Attempt(([*tokens(1, 0, 1), *tokens(1, 1, 0), *tokens(1, 0, 0)],)),
        [c.SortRows(0)],
    ),
    "M-RoPE, a token": (
        e.MropeTokenPosition,
        Attempt((tokens(2, 1, pos=2),), {"n_pos": 4}, before=(fed(4, 1),), make=StepsOneToFour),
        [c.ContinueFrom(0, 4), remove(1, 2, -1)],
    ),
    "M-RoPE, an embedding": (
        e.MropeEmbdPosition,
        Attempt(([{"embd": ZEROS, "seq": 1, "pos": [1] * 4}],), {"n_pos": 4}, (fed(4, 1),), make=StepsOneToFour),
        [c.ContinueFrom(0, 3), remove(1, 1, -1)],
    ),
    "shared, one holds nothing": (
        e.CoupledDiverged,
        Attempt((tokens(2, {0, 2}, pos=3),), UNIFIED | {"n_seq_max": 3}, (fed(3, 0),)),
        [c.CopySequence(0, 2)],
    ),
    "shared, the first holds nothing": (
        e.CoupledDiverged,
        Attempt((tokens(2, {0, 2}, pos=3),), UNIFIED | {"n_seq_max": 3}, (fed(3, 2),)),
        [c.CopySequence(2, 0)],
    ),
    "shared, one starts later": (
        e.CoupledDiverged,
        Attempt((tokens(2, {0, 1}),), UNIFIED, (fed(4, 0), fed(4, 1), lambda ctx: ctx.memory.rm(1, 0, 2))),
        [remove(0, 0, 2)],
    ),
    "shared rows in streams": (e.CoupledSequences, Attempt((tokens(2, {0, 1}),)), [set_to("unified", True)]),
    # F19, F21
    "full of others": (
        e.NoSlot,
        Attempt((tokens(5, 2),), UNIFIED | {"n_seq_max": 3}, (fed(10, 0), fed(4, 1))),
        [c.TruncateBatch(2), remove(1, -1, -1, 4), set_to("n_ctx", 19)],
    ),
    "full of a shared prefix": (
        e.NoSlot,
        Attempt((tokens(5, 2),), UNIFIED | {"n_seq_max": 3}, (fed(9, {0, 1}), fed(5, 0), fed(2, 1))),
        [remove(0, -1, -1, 5), set_to("n_ctx", 21)],
    ),
    "full of itself": (
        e.NoSlot,
        Attempt((tokens(3, 0),), UNIFIED, (fed(16, 0),)),
        [remove(0, 0, 3, 3), set_to("n_ctx", 19)],
    ),
    "full of several others": (
        e.NoSlot,
        Attempt((tokens(9, 3),), UNIFIED | {"n_seq_max": 4}, (fed(6, 0), fed(5, 1), fed(4, 2))),
        [c.TruncateBatch(1), c.RemoveRanges((remove(0, -1, -1, 6), remove(1, -1, -1, 5))), set_to("n_ctx", 24)],
    ),
    "full of those that go on": (
        e.NoSlot,
        Attempt(
            ([r for s in range(4) for r in tokens(3, s)],),
            UNIFIED | {"n_seq_max": 4},
            tuple(fed(4, s) for s in range(4)),
        ),
        [
            c.RemoveRanges(tuple(remove(s, 0, 3, 3) for s in range(4))),
            set_to("n_ctx", 28),
        ],
    ),
    "a stream too short": (
        e.NoSlot,
        Attempt((tokens(3, 1) + tokens(4, 0),), STREAMS, (fed(5, 0), fed(2, 1))),
        [c.TruncateSequences(((0, 3), (1, 3))), remove(0, 0, 1, 1), set_to("n_ctx", 18), set_to("unified", True)],
    ),
    "both streams too short": (
        e.NoSlot,
        Attempt((tokens(3, 1) + tokens(4, 0),), STREAMS, (fed(8, 0), fed(7, 1))),
        [
            c.TruncateSequences(((0, 0), (1, 1))),
            c.RemoveRanges((c.RemoveRange(0, 0, 4, 4), c.RemoveRange(1, 0, 2, 2))),
            set_to("n_ctx", 24),
        ],
    ),
    "n_ctx below 0": (e.ContextError, Attempt(settings={"n_ctx": -1}), [set_to("n_ctx", 0)]),
    "n_seq_max in words": (e.ContextError, Attempt(settings={"n_seq_max": "4"}), [set_to("n_seq_max", 1)]),
    "unknown on_error": (e.ContextError, Attempt(settings={"on_error": "redo"}), [set_to("on_error", "undo")]),
    "n_batch 0": (e.ContextError, Attempt(settings={"n_batch": 0}), [set_to("n_batch", None)]),
    "n_ubatch below 0": (e.ContextError, Attempt(settings={"n_ubatch": -3}), [set_to("n_ubatch", None)]),
    "no cell for a sequence": (
        e.ContextError,
        Attempt(settings={"n_ctx": 3, "n_seq_max": 4}),
        [set_to("unified", True), set_to("n_ctx", 4), set_to("n_seq_max", 3)],
    ),
    "a layer that is not there": (e.ContextError, Attempt(settings={"keep_layers": (2,)}), [set_to("keep_layers", ())]),
    "a backend that is not there": (
        e.CapabilityError,
        Attempt(settings={"backend": "abacus"}),
        [set_to("backend", "auto")],
    ),
    "no output there": (e.OutputError, Attempt((tokens(3),), ask=1), [c.RequestOutput(1)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_applying_the_advice_makes_the_call_succeed(name: str) -> None:
    kind, attempt, wanted = CASES[name]
    advice = attempt.go()
    assert advice is not None and advice.code == kind.code
    assert list(advice.changes) == wanted
    for change in advice.changes:
        assert str(change) in advice.text
        assert apply(change, attempt).go() is None, change
    assert [d["change"] for d in json.loads(json.dumps(advice.to_json()))["changes"]] == [
        type(change).__name__ for change in wanted
    ]


@pytest.mark.parametrize("name", [name for name, (kind, *_) in CASES.items() if kind is e.ContextError])
def test_a_refused_context_says_itself_what_was_asked(name: str) -> None:
    _, attempt, wanted = CASES[name]
    with pytest.raises(e.ContextError) as caught:
        Context(MODEL, **{"n_ctx": 8, **attempt.settings})
    assert list(advise(caught.value).changes) == wanted


def _refused(call: Callable[[], object]) -> tuple[e.PolyseqError, str]:
    with pytest.raises(e.PolyseqError) as caught:
        call()
    return caught.value, advise(caught.value).text


def _extend(n_tokens: int, n_flags: int) -> None:
    Batch().extend(range(n_tokens), output=[True] * n_flags)


def _decode(*rows: Row, **sizes: Any) -> Any:
    batch = Batch()
    for row in rows:
        batch.add(**row)
    return Context(MODEL, n_ctx=8, **sizes).decode(batch)


def _encode(*rows: Row) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        ctx = Context(Model.load(tiny_bert(Path(folder))), n_seq_max=2)
    batch = ctx.batch()
    for row in rows:
        batch.add(**row)
    return ctx.encode(batch)


def _copy_part(unified: bool) -> None:
    memory = KvCache(n_cells=8, n_seq_max=2, unified=unified)
    batch = Batch()
    batch.extend(range(4))
    plan = memory.init_batch(check(batch, Limits(n_vocab=9, n_seq_max=2), memory.ranges), 4)
    assert not isinstance(plan, e.NoSlot)
    memory.apply(plan.ubatches[0], plan.slots[0])
    memory.cp(0, 1, 0, 2)


# What cannot be said as one change: the sentence, followed by hand.
BY_HAND: dict[str, tuple[type[e.PolyseqError], Callable[[], object], str, Callable[[], object]]] = {
    "no rows": (e.EmptyBatch, lambda: _decode(), "add at least one row", lambda: _decode({"token": 1})),
    "columns of two lengths": (
        e.BadColumn,
        lambda: _extend(3, 2),
        "every column one entry per row",
        lambda: _extend(3, 3),
    ),
    "an embedding of another width": (
        e.BadEmbedding,
        lambda: _decode({"embd": ZEROS[:31]}),
        "rows that are 32 wide",
        lambda: _decode({"embd": ZEROS}),
    ),
    "more positions than the model has": (
        e.BeyondModel,
        lambda: _encode(*tokens(N_CTX + 2)),
        f"leave out row {N_CTX}, {N_CTX + 1}",
        lambda: _encode(*tokens(N_CTX)),
    ),
    "a row of two texts": (
        e.SharedRow,
        lambda: _encode({"token": 1, "seq": {0, 1}}),
        "once for each of its sequences",
        lambda: _encode({"token": 1, "seq": 0}, {"token": 1, "seq": 1}),
    ),
    "a part copied between streams": (
        e.SequenceError,
        lambda: _copy_part(False),
        "only in a unified cache",
        lambda: _copy_part(True),
    ),
    "hidden rows that were not kept": (
        e.CapabilityError,
        lambda: _decode({"token": 1}).hidden(0),
        "set keep_hidden to True",
        lambda: _decode({"token": 1}, keep_hidden=True).hidden(0),
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_following_the_sentence_makes_the_call_succeed(name: str) -> None:
    kind, call, words, better = BY_HAND[name]
    error, text = _refused(call)
    assert type(error) is kind and words in text
    better()


def test_an_aborted_call_can_be_made_again() -> None:
    ctx = Context(MODEL, n_ctx=8, n_ubatch=2)
    batch = ctx.batch()
    batch.extend(range(6))
    apply_slot = ctx.memory.apply

    def apply_and_abort(*args: Any) -> None:
        apply_slot(*args)
        ctx.abort()

    ctx.memory.apply = apply_and_abort  # type: ignore[method-assign]
    error, text = _refused(lambda: ctx.decode(batch))
    assert type(error) is e.Aborted and "make the same call again" in text
    ctx.memory.apply = apply_slot  # type: ignore[method-assign]
    ctx.decode(batch)


@pytest.mark.parametrize(("strategy", "n_ubatch", "least"), [(Equal(n_keep_tail=3), 2, 4), (Equal(), 0, 1)])
def test_a_cut_names_the_ubatch_it_needs(strategy: Equal, n_ubatch: int, least: int) -> None:
    batch = Batch()
    batch.extend(range(9))
    checked = check(batch, Limits(n_vocab=9, n_seq_max=1), KvCache(n_cells=9, n_seq_max=1, unified=True).ranges)
    with pytest.raises(e.SplitError) as caught:
        split_all(checked, strategy, n_ubatch)
    (change,) = advise(caught.value).changes
    assert change == set_to("n_ubatch", least)
    assert sum(u.n_tokens for u in split_all(checked, strategy, least)) == 9


def test_what_is_advised_keeps_spans_whole() -> None:
    ctx = Context(MODEL, n_ctx=32, n_batch=8, n_ubatch=4)
    batch = ctx.batch()
    batch.extend(range(6), span=True)
    with pytest.raises(e.SpanTooLong) as too_long:
        ctx.decode(batch)
    assert advise(too_long.value).changes == (set_to("n_ubatch", 6),)
    ctx = Context(MODEL, n_ctx=32, n_batch=8, n_ubatch=6)
    ctx.decode(batch)
    ctx.memory.clear()
    for before, calls in ((5, (5, 6)), (9, (8, 7)), (16, (8, 8, 6))):
        batch = Batch()
        batch.extend(range(before))
        batch.extend(range(6), span=True)
        with pytest.raises(e.BatchTooLarge) as too_large:
            ctx.decode(batch)
        assert advise(too_large.value).changes[0] == c.SplitBatch(calls)
    batch = Batch()
    batch.extend(range(9), span=True)
    with pytest.raises(e.BatchTooLarge) as too_large:
        ctx.decode(batch)
    assert advise(too_large.value).changes == (set_to("n_batch", 9),)


class AbortAfterFirst:
    """A sink that ends a call once its first ubatch is done."""

    ctx: Context

    def record(self, event: Event, /) -> None:
        if isinstance(event, Computed) and event.i_call == 0:
            self.ctx.abort()


def test_what_was_not_kept_of_a_call_can_be_handed_in() -> None:
    sink = AbortAfterFirst()
    sink.ctx = ctx = Context(MODEL, n_ctx=16, n_seq_max=2, n_ubatch=2, on_error="keep_finished", trace=sink)
    rows = tokens(3, 0) + tokens(4, 1)
    with pytest.raises(e.PartlyDecoded) as caught:
        ctx.decode(_batch(ctx, rows))
    (change,) = advise(caught.value).changes
    assert isinstance(change, c.DropRows) and len(change.rows) == 2
    (left,) = apply(change, Attempt((rows,))).calls
    ctx.decode(_batch(ctx, left))
    assert [ctx.memory.pos_max(s) for s in (0, 1)] == [2, 3]


def _batch(ctx: Context, rows: list[Row]) -> Batch:
    batch = ctx.batch()
    for row in rows:
        batch.add(**row)
    return batch


def test_a_saved_sequence_is_restored_where_its_place_is_emptied() -> None:
    ctx = Context(MODEL, n_ctx=16, n_seq_max=2)
    fed(5, 0)(ctx)
    blob = ctx.save(0)
    with pytest.raises(e.SavedStateError) as caught:
        ctx.restore(blob)
    (change,) = advise(caught.value).changes
    assert change == remove(0, -1, -1)
    ctx.memory.rm(0, -1, -1)
    ctx.restore(blob)
    with pytest.raises(e.SavedStateError) as caught:
        ctx.restore(blob[:99])
    assert advise(caught.value).changes == () and "save again" in advise(caught.value).text


KINDS = {"window": tiny_gemma3(), "recurrent": tiny_mamba(), "hybrid": tiny_lfm2()}


def _kind(name: str) -> Callable[..., Any]:
    model = Model(KINDS[name].architecture, KINDS[name].weights, KINDS[name].metadata)
    return lambda **s: Context(model, **s)


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("kind", ["window", "hybrid"])
def test_every_kind_of_memory_that_can_be_full_says_what_would_do(kind: str, unified: bool) -> None:
    """Where nothing is known of the kind but how it saves and restores."""
    sizes = {"n_ctx": 32, "n_seq_max": 2, "n_ubatch": 4, "unified": unified}
    attempt = Attempt((tokens(9, 0),), sizes, (fed(15, 0), fed(14, 1)), make=_kind(kind))
    advice = attempt.go()
    assert advice is not None and advice.code == "no_slot"
    names = {type(change).__name__ for change in advice.changes}
    assert {"ChangeSetting"} < names, advice
    for change in advice.changes:
        assert apply(change, attempt).go() is None, change


def test_a_running_state_is_never_full() -> None:
    sizes = {"n_ctx": 8, "n_seq_max": 2, "n_batch": 8}
    assert Attempt((tokens(8, 0),), sizes, (fed(8, 0), fed(8, 1)), make=_kind("recurrent")).go() is None


def test_a_refusal_names_itself_what_would_fit() -> None:
    """The text of the error, without any advice."""
    ctx = Context(MODEL, n_ctx=8, n_seq_max=2, unified=True)
    fed(5, 0)(ctx)
    with pytest.raises(e.NoSlot, match="its first 3 rows would fit"):
        fed(4, 1)(ctx)
    fed(3, 1)(ctx)
    with pytest.raises(e.NoSlot, match="no row of it would fit, a stream of 10 cells would hold all of it") as caught:
        fed(2, 1)(ctx)
    assert set_to("n_ctx", 10) in advise(caught.value).changes
    ctx.memory.clear()  # the advice is for what is held when it is asked for
    assert advise(caught.value).changes == (c.CallAgain(),)


# Found in files and texts, before there is a call: a sentence is all there is.
SENTENCE_ONLY = {
    e.InvalidModelFile,
    e.UnsupportedModel,
    e.UnknownModel,
    e.FetchError,
    e.TokenizerError,
    e.TemplateError,
    e.SamplingError,
    e.UnknownRequest,
    e.NotFinite,  # the fault is in the weights
    e.ForkedMidway,  # the fault is in the process
}
BASES = {e.PolyseqError, e.BatchError, e.ModelError}


def test_every_refusal_kind_is_explained() -> None:
    kinds = {k for _, k in inspect.getmembers(e, inspect.isclass) if issubclass(k, e.PolyseqError)} - BASES
    tested = (
        {k for k, _, _ in CASES.values()} | {k for k, *_ in BY_HAND.values()} | {e.Aborted, e.SplitError, e.SpanTooLong}
    )
    tested |= {e.PartlyDecoded, e.SavedStateError}
    assert tested | SENTENCE_ONLY == kinds
    for kind in SENTENCE_ONLY:
        advice = advise(kind("..."))
        assert advice.code == kind.code and len(advice.text) > 20 and advice.changes == ()


def test_the_sentence_tells_what_is_short_and_what_would_do() -> None:
    advice = CASES["full of others"][1].go()
    assert advice is not None
    assert advice.text == (
        "stream 0 is 3 cells short (5 needed, 2 of 16 free): hand in only the first 2 rows now; "
        "or remove sequence 1 (rm(1, -1, -1)), which frees 4 cells; or set n_ctx to 19"
    )
    advice = CASES["full of itself"][1].go()
    assert (
        advice is not None and "remove positions 0..2 of sequence 0 (rm(0, 0, 3)), which frees 3 cells" in advice.text
    )


def test_without_batch_and_memory_nothing_untried_is_said() -> None:
    error = e.NoSlot(needed=5, free=2, largest_run=1, n_cells=8, stream=0, i_ubatch=0, holders=())
    assert advise(error).changes == ()
    assert advise(error).text == "stream 0 is 3 cells short (5 needed, 2 of 8 free)"


# Whatever was fed and is asked for: each change is enough, one row more or one cell less is not.
@settings(max_examples=60, deadline=None)
@given(
    st.booleans(),
    st.lists(st.integers(0, 6), min_size=3, max_size=3),
    st.lists(st.integers(0, 2), min_size=1, max_size=14),
    st.integers(1, 6),
)
def test_room_is_found_and_is_the_most_there_is(unified: bool, held: list[int], seqs: list[int], n_ubatch: int) -> None:
    attempt = Attempt(
        ([{"token": 1, "seq": s} for s in seqs],),
        {"n_ctx": 18, "n_seq_max": 3, "unified": unified, "n_ubatch": n_ubatch},
        tuple(fed(min(n, 18 if unified else 6), s) for s, n in enumerate(held) if n),
    )
    advice = attempt.go()
    if advice is None:
        return
    assert advice.code == "no_slot" and advice.changes
    for change in advice.changes:
        assert apply(change, attempt).go() is None, change
        match change:
            case c.ChangeSetting("n_ctx", value):
                step = 1 if unified else 3
                assert apply(c.ChangeSetting("n_ctx", value - step), attempt).go() is not None  # type: ignore[operator]
            case c.TruncateBatch(n):
                assert apply(c.TruncateBatch(n + 1), attempt).go() is not None
            case c.TruncateSequences(n_rows):
                for i, (s, n) in enumerate(n_rows):
                    if n < seqs.count(s):
                        more = (*n_rows[:i], (s, n + 1), *n_rows[i + 1 :])
                        assert apply(c.TruncateSequences(more), attempt).go() is not None


def test_a_batch_with_two_faults_is_advised_on_the_first() -> None:
    rows = tokens(3, 0, pos=0) + tokens(3, 0, pos=7)
    advice = Attempt((rows,), {"n_batch": 4}).go()
    assert advice is not None and advice.changes[0] == c.SplitBatch((4, 2))
    advice = Attempt((tokens(6, {0, 1}),), {"n_batch": 4}).go()
    assert advice is not None and advice.code == "batch_size"


def test_the_memory_is_left_as_it_is() -> None:
    ctx = Context(MODEL, n_ctx=16, n_seq_max=2)
    fed(5, 0)(ctx)
    before = ctx.memory.cells.columns()
    batch = ctx.batch()
    batch.extend(range(4), seq=0)
    with pytest.raises(e.NoSlot) as caught:
        ctx.decode(batch)
    assert advise(caught.value).changes
    assert ctx.memory.cells.columns() == before
