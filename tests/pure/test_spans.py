"""Spans: rows of a prompt that see each other in both directions (an image's), kept whole by every cut (F49)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from typer.testing import CliRunner

from polyseq import Batch, Context, Model
from polyseq import errors as e
from polyseq.backends import backend
from polyseq.batch import CheckedBatch, Limits, SeqRanges, check
from polyseq.cli.app import app
from polyseq.explain.replay import simulate_recorded
from polyseq.explain.rows import rows_of_text
from polyseq.explain.timeline import timeline
from polyseq.graph import CachePart, Inputs, Wanted
from polyseq.memory import KvCache, KvView, MemoryPlan, window_pair
from polyseq.split import Equal, Packed, Seq, Simple, Strategy, Whole, reason, split_all
from polyseq.trace import TraceFile, read_trace
from test_atomic import KINDS, context
from test_split import check_cut
from tiny_bert import tiny_bert

CELLS = [kind for kind in KINDS if not kind.startswith(("recurrent", "hybrid"))]
Piece = tuple[int, int, bool]  # sequence, rows, whether they are a span
TEXT, SPAN = False, True
MIXED: list[Piece] = [(0, 4, TEXT), (1, 2, TEXT), (0, 9, SPAN), (1, 3, SPAN), (1, 6, TEXT), (0, 3, TEXT), (1, 2, SPAN)]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_pair, "WINDOW_PAD", 1)


def tokens_of(pieces: Sequence[Piece]) -> list[NDArray[np.int32]]:
    return [np.random.default_rng(i).integers(0, 60, n).astype(np.int32) for i, (_, n, _) in enumerate(pieces)]


def fill(batch: Batch, pieces: Sequence[Piece], tokens: Sequence[NDArray[np.int32]]) -> Batch:
    for (seq, _, span), ids in zip(pieces, tokens, strict=True):
        batch.extend(ids, seq=seq, output=True, span=span)
    return batch


def wanted(model: Model, tokens: Sequence[NDArray[np.int32]], spans: Sequence[bool]) -> NDArray[np.float32]:
    """[n, n_vocab] of one sequence's pieces, all rows at once, by a mask that says pair by pair who sees whom."""
    piece = np.repeat(range(len(tokens)), [len(t) for t in tokens])
    n, layers = len(piece), model.architecture.cache_layers

    def view(n_swa: int) -> KvView:
        mask = np.zeros((n, n), np.bool_)
        for i, j in np.ndindex(n, n):
            ahead = piece[i] == piece[j] and spans[piece[i]]
            mask[i, j] = (j <= i or ahead) and (n_swa == 0 or j > i - n_swa)
        place = np.arange(n, dtype=np.int32)
        columns = n, np.zeros(1, np.int32), np.zeros(n, np.intp), place, place, place[None], mask, np.arange(n)
        return KvView(*columns, last_seen=np.full(n, n, np.int32))

    loaded = model.loaded(backend("reference"))
    kept = {i: layer for i, layer in enumerate(layers) if layer is not None}
    parts = {layer.part: {i: a for i, a in kept.items() if a.part == layer.part} for layer in kept.values()}
    cache = loaded.cache(tuple(CachePart(name, 1, n, inside) for name, inside in parts.items()))
    window = max(getattr(layer, "n_swa", 0) for layer in layers)
    rows = np.arange(n, dtype=np.int32)
    inputs = Inputs(token=np.concatenate(tokens), pos=rows[None], out_rows=rows, kv=view(0), kv_swa=view(window))
    return loaded.plan(model.architecture.build(Wanted()), cache).run(inputs)["logits"]


def assert_right(kind: str, found: NDArray[np.float32], pieces: Sequence[Piece]) -> None:
    tokens = tokens_of(pieces)
    seq = np.repeat([s for s, _, _ in pieces], [n for _, n, _ in pieces])
    for s in (0, 1):
        of_seq = [(ids, span) for (t, _, span), ids in zip(pieces, tokens, strict=True) if s == t]
        truth = wanted(KINDS[kind][0], [ids for ids, _ in of_seq], [span for _, span in of_seq])
        np.testing.assert_allclose(found[seq == s], truth, rtol=0, atol=1e-4)


# ---- what rows see -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("n_ubatch", [9, 10, 13, 64])
@pytest.mark.usefixtures("on_each_backend")
def test_rows_of_a_span_see_each_other_whatever_the_cut(kind: str, n_ubatch: int) -> None:
    ctx = context(kind, n_ubatch=n_ubatch)
    batch = fill(ctx.batch(), MIXED, tokens_of(MIXED))
    found = ctx.decode(batch).all_logits()
    assert_right(kind, found, MIXED)
    ctx.memory.check()
    ctx.memory.clear()
    text = [(seq, n, TEXT) for seq, n, _ in MIXED]
    differs = np.abs(ctx.decode(fill(ctx.batch(), text, tokens_of(text))).all_logits() - found).max(axis=1) > 1e-2
    seq = np.repeat([s for s, _, _ in MIXED], [n for _, n, _ in MIXED])
    assert differs.tolist() == [i >= 6 for i in range(len(seq))], "all from the first span on"


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("calls", [(1, 3, 7), (2, 3, 4, 5, 6, 7), (5, 7)])
@pytest.mark.usefixtures("on_each_backend")
def test_spans_may_come_in_any_call(kind: str, calls: Sequence[int]) -> None:
    ctx = context(kind, n_ubatch=9)
    tokens, found = tokens_of(MIXED), []
    for start, stop in pairwise((0, *calls)):
        found.append(ctx.decode(fill(ctx.batch(), MIXED[start:stop], tokens[start:stop])).all_logits())
    assert_right(kind, np.concatenate(found), MIXED)


@pytest.mark.usefixtures("on_each_backend")
def test_embeddings_and_shared_rows_can_be_spans() -> None:
    """An image that two answers share: what each of them has alone."""
    model, _ = KINDS["unified"]
    tokens = tokens_of([(0, 3, TEXT), (0, 5, SPAN), (0, 2, TEXT)])
    ctx = context("unified", n_ubatch=6, allow_mixed=True)
    batch = ctx.batch()
    batch.extend(tokens[0], seq={0, 1}, output=True)
    batch.extend(embd=model.weights.f32("token_embd.weight")[tokens[1]], seq={0, 1}, output=True, span=True)
    batch.extend(tokens[2], seq=1, output=True)
    found = ctx.decode(batch).all_logits()
    np.testing.assert_allclose(found, wanted(model, tokens, [False, True, False]), rtol=0, atol=1e-4)


# ---- every cut keeps them whole -----------------------------------------------------------------------------


@st.composite
def batches_with_spans(draw: st.DrawFn, *, shared: bool) -> CheckedBatch:
    """Pieces of three sequences in any order, after some that all of them share."""
    pieces = [frozenset({0, 1, 2})] * draw(st.integers(1, 3)) if shared else []
    later = [{0, 1}, {2}] if shared and draw(st.booleans()) else [{0}, {1}, {2}]
    pieces += [frozenset(s) for s in draw(st.lists(st.sampled_from(later), min_size=1, max_size=8))]
    batch = Batch()
    for ids in pieces:
        n = draw(st.integers(1, 6))
        batch.extend([1] * n, seq=ids, output=draw(st.booleans()), span=draw(st.booleans()))
    return check(batch, Limits(n_vocab=9, n_seq_max=3), SeqRanges.empty(3))


def longest(batch: CheckedBatch) -> int:
    return 0 if batch.span is None else int(np.bincount(batch.span[batch.span >= 0], minlength=1).max())


@pytest.mark.parametrize("shared", [False, True])
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_cut_tears_a_span(shared: bool, data: st.DataObject) -> None:
    batch = data.draw(batches_with_spans(shared=shared))
    strategies: list[Strategy] = [Simple(), Equal(), Seq()]
    strategy = data.draw(st.sampled_from(strategies if shared else [*strategies, Packed(), Equal(sequential=True)]))
    n_ubatch = max(1, longest(batch)) + data.draw(st.integers(0, 9))
    ubatches = check_cut(batch, strategy, n_ubatch)
    for span in np.unique(batch.span) if batch.span is not None else ():
        rows = np.flatnonzero(batch.span == span)
        assert span < 0 or sum(len(np.intersect1d(rows, u.batch_idxs)) > 0 for u in ubatches) == 1
    if longest(batch) > 1:
        with pytest.raises(e.SpanTooLong) as caught:
            split_all(batch, strategy, longest(batch) - 1)
        assert caught.value.least == longest(batch)


def cut(pieces: Sequence[Piece], strategy: Strategy, n_ubatch: int) -> list[tuple[list[int], str]]:
    batch = fill(Batch(), pieces, tokens_of(pieces))
    found = split_all(check(batch, Limits(n_vocab=60, n_seq_max=2), SeqRanges.empty(2)), strategy, n_ubatch)
    return [(u.batch_idxs.tolist(), u.reason) for u in found]


@pytest.mark.parametrize("strategy", [Simple(), Packed(), Equal(), Equal(sequential=True), Seq()])
def test_the_cut_of_one_sequence_by_value(strategy: Strategy) -> None:
    """Three rows, a span of four, two rows: what fits before the span, then it and what fits behind it."""
    found = cut([(0, 3, TEXT), (0, 4, SPAN), (0, 2, TEXT)], strategy, 5)
    assert found == [([0, 1, 2], reason.SPAN), ([3, 4, 5, 6, 7], reason.FULL), ([8], reason.BATCH_ENDED)]


def test_streams_wait_for_the_span_of_one_of_them() -> None:
    """Two rows of each would end in the span of sequence 1, one row of each as well: sequence 0 goes on alone."""
    pieces = [(0, 4, TEXT), (1, 3, SPAN), (1, 1, TEXT)]
    assert cut(pieces, Equal(sequential=True), 5) == [
        ([0, 1, 2, 3], reason.SPAN),
        ([4, 5, 6, 7], reason.BATCH_ENDED),
    ]
    assert cut(pieces, Equal(sequential=True), 6) == [([0, 1, 2, 4, 5, 6], reason.FULL), ([3, 7], reason.BATCH_ENDED)]


@pytest.mark.parametrize("unified", [True, False])
def test_an_image_of_four_sections_comes_whole(unified: bool) -> None:
    """Rows at one position, as M-RoPE gives them to an image, are kept together by nothing but the span."""
    batch = Batch(n_pos=4)
    batch.extend(embd=np.ones((3, 2)), seq=0)
    grid = [[3] * 6, [3, 3, 3, 4, 4, 4], [3, 4, 5] * 2, [0] * 6]
    batch.extend(embd=np.ones((6, 2)), seq=0, pos=grid, span=True)
    memory = KvCache(n_cells=16, n_seq_max=2, unified=unified, n_pos=4)
    plan = memory.init_batch(check(batch, Limits(n_vocab=9, n_seq_max=2, n_pos=4, n_embd=2), memory.ranges), 8)
    assert isinstance(plan, MemoryPlan)
    assert [u.batch_idxs.tolist() for u in plan.ubatches] == [[0, 1, 2], [3, 4, 5, 6, 7, 8]]
    for ubatch, slot in zip(plan.ubatches, plan.slots, strict=True):
        memory.apply(ubatch, slot)
    assert memory.view(plan.ubatches[1], plan.slots[1]).visible(slice(None)).all()


# ---- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.usefixtures("on_each_backend")
def test_a_span_above_n_ubatch_is_named_with_what_would_do(kind: str) -> None:
    """F49: nine rows in both directions inside a causal prompt, n_ubatch 8."""
    ctx = context(kind, n_ubatch=8)
    batch = fill(ctx.batch(), MIXED, tokens_of(MIXED))
    before, stats = ctx.memory.columns(), ctx.stats
    told = r"rows 6\.\.14 are a span of sequence 0, positions 4\.\.12: its 9 rows .* n_ubatch is 8; set it to 9 or more"
    with pytest.raises(e.SpanTooLong, match=told):
        ctx.decode(batch)
    assert ctx.memory.columns() == before and ctx.stats == stats
    rest = [piece for piece in MIXED if piece[1] < 9]
    assert ctx.decode(fill(ctx.batch(), rest, tokens_of(rest))).n_outputs == 20


def test_rows_of_a_span_belong_together() -> None:
    batch = Batch()
    with pytest.raises(e.BadColumn, match="row 0: the rows of a span belong together; give seq as one id"):
        batch.extend([1, 2], seq=[0, 1], span=True)
    assert not len(batch)


def test_what_cannot_look_ahead_takes_no_spans(tmp_path: Path) -> None:
    contexts: list[Context] = [context(kind) for kind in KINDS if kind not in CELLS]
    for ctx in (*contexts, Context(Model.load(tiny_bert(tmp_path)))):
        batch = ctx.batch()
        batch.extend([7, 8], span=True)
        with pytest.raises(e.CapabilityError, match="takes no spans"):
            ctx.decode(batch)
    with pytest.raises(e.SplitError, match="spans are for memories without running states"):
        cut([(0, 2, SPAN)], Equal(n_keep_tail=1), 4)


def test_no_room_counts_whole_spans() -> None:
    """Eight cells are free; the first eight rows would end in the span."""
    ctx = context("unified", n_ctx=8, n_batch=8, n_ubatch=8)
    batch = fill(Batch(), [(0, 3, TEXT)], tokens_of([(0, 3, TEXT)]))
    ctx.decode(batch)
    batch.clear()
    fill(batch, [(0, 2, TEXT), (0, 4, SPAN)], tokens_of([(0, 2, TEXT), (0, 4, SPAN)]))
    with pytest.raises(e.NoSlot, match="its first 2 rows would fit") as caught:
        ctx.decode(batch)
    assert caught.value.n_fit == 2


# ---- around it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["unified", "streams"])
def test_a_recorded_call_is_cut_as_it_was(kind: str, tmp_path: Path) -> None:
    with TraceFile(tmp_path / "trace") as sink:
        ctx = context(kind, n_ubatch=10, trace=sink)
        plan = ctx.plan(fill(ctx.batch(), MIXED, tokens_of(MIXED)))
        ctx.decode(fill(ctx.batch(), MIXED, tokens_of(MIXED)))
        ctx.decode(fill(ctx.batch(), MIXED[:1], tokens_of(MIXED)[:1]))
    found = timeline(read_trace(tmp_path / "trace"))
    again = simulate_recorded(found, found.calls[0].i_call)
    assert [u.batch_idxs.tolist() for u in again.ubatches] == [u.batch_idxs.tolist() for u in plan.ubatches]
    assert [call.checked.span is None for call in found.calls if call.checked] == [False, True]


def test_a_plan_reads_spans(tmp_path: Path) -> None:
    rows = [{"seq": 0}] * 3 + [{"seq": 0, "span": 1}] * 4 + [{"seq": 1, "span": 2}] * 2 + [{"seq": 1, "span": None}]
    batch = rows_of_text(json.dumps(rows), by_line=False)
    assert batch.span is not None and batch.span.tolist() == [-1] * 3 + [3] * 4 + [7] * 2 + [-1]
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(rows))
    done = CliRunner().invoke(app, ["plan", str(file), "--n-ubatch", "5", "--json"])
    found = json.loads(done.stdout)["ubatches"]
    wanted_cut = [(3, reason.SPAN), (4, reason.SPAN), (3, reason.BATCH_ENDED)]
    assert [(u["n_tokens"], u["reason"]) for u in found] == wanted_cut
    with pytest.raises(e.BadColumn, match=r"row 1: its span is of \[0\], it is of \[1\]"):
        rows_of_text('[{"span": 1}, {"span": 1, "seq": 1}]', by_line=False)
    with pytest.raises(e.BadColumn, match="row 0: span is 'a', not an integer"):
        rows_of_text('[{"span": "a"}]', by_line=False)


def test_sequences_computed_whole_hold_their_spans() -> None:
    pieces = [(0, 2, TEXT), (0, 3, SPAN), (1, 2, SPAN)]
    assert [rows for rows, _ in cut(pieces, Whole(), 5)] == [[0, 1, 2, 3, 4], [5, 6]]
