"""Steps 1 and 2: rows in, and every refusal by its class, text and fields, with nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyseq import errors as e
from polyseq.batch import Batch, CheckedBatch, FlatBatch, Limits, SeqRanges, check
from polyseq.batch.by_sequence import BySequence
from polyseq.batch.positions import check_positions, continue_all, resolve_positions

LIMITS = Limits(n_vocab=100, n_seq_max=4, n_batch=16)
MROPE = Limits(n_vocab=100, n_seq_max=4, n_pos=4)


def holding(**held: tuple[int, int]) -> SeqRanges:
    """holding(s0=(0, 9)): what memory has of each sequence."""
    ranges = SeqRanges(np.full(4, -1, np.int32), np.full(4, -1, np.int32))
    for name, (lo, hi) in held.items():
        ranges.pos_min[int(name[1:])], ranges.pos_max[int(name[1:])] = lo, hi
    return ranges


EMPTY = holding()


def rows(*specs: dict[str, Any], n_pos: int = 1) -> Batch:
    batch = Batch(n_pos=n_pos)
    for spec in specs:
        batch.add(**spec)
    return batch


def columns(**spec: Any) -> Batch:
    batch = Batch(n_pos=spec.pop("n_pos", 1))
    batch.extend(**spec)
    return batch


def contents(batch: Batch) -> dict[str, object]:
    return {
        name: None if (column := getattr(batch, name)) is None else (column.shape, column.tobytes())
        for name in ("token", "content", "pos", "output", "seq_count", "seq_ids", "embd", "state")
    }


# ---- refusals of the check ---------------------------------------------------------------------------

V = np.ones((2, 3))
REFUSALS: list[tuple[str, Batch, Limits, SeqRanges, type[e.BatchError], str, dict[str, Any]]] = [
    ("empty", Batch(), LIMITS, EMPTY, e.EmptyBatch, "no rows", {}),
    (
        "too many sequences",
        columns(tokens=[1]),
        Limits(n_vocab=9, n_seq_max=257),
        EMPTY,
        e.BadSeqCount,
        "257.*1 to 256",
        {"value": 257},
    ),
    ("no sequences", columns(tokens=[1]), Limits(n_vocab=9, n_seq_max=0), EMPTY, e.BadSeqCount, "is 0", {"value": 0}),
    (
        "n_batch",
        columns(tokens=[1] * 17),
        LIMITS,
        EMPTY,
        e.BatchTooLarge,
        "17 rows, n_batch is 16",
        {"value": 17, "limit": 16},
    ),
    (
        "mix",
        rows({"token": 1}, {"embd": V[0]}),
        LIMITS,
        EMPTY,
        e.ContentMix,
        "row 1 carries an embedding, row 0 a token",
        {"row": 1},
    ),
    (
        "both beside one",
        rows({"token": 1, "embd": V[0]}, {"token": 1}),
        LIMITS,
        EMPTY,
        e.ContentMix,
        "row 1 carries a token, row 0 a token and",
        {"row": 1},
    ),
    ("nothing", columns(seq=[0, 0]), LIMITS, EMPTY, e.NoContent, "row 0 carries neither", {"row": 0}),
    (
        "token",
        columns(tokens=[1, 100]),
        LIMITS,
        EMPTY,
        e.BadToken,
        r"row 1: token 100 .*\[0, 100\)",
        {"row": 1, "value": 100, "limit": 100},
    ),
    ("negative token", columns(tokens=[-7]), LIMITS, EMPTY, e.BadToken, "row 0: token -7", {"row": 0, "value": -7}),
    (
        "sequence",
        columns(tokens=[1, 1], seq=[0, 4]),
        LIMITS,
        EMPTY,
        e.BadSeqId,
        r"row 1: sequence 4 is outside \[0, 4\)",
        {"row": 1, "seq_id": 4, "limit": 4},
    ),
    (
        "shared sequence",
        columns(tokens=[1, 1], seq=[[0], [1, -2]]),
        LIMITS,
        EMPTY,
        e.BadSeqId,
        "row 1: sequence -2",
        {"row": 1, "seq_id": -2},
    ),
    (
        "no sequence",
        columns(tokens=[1, 1], seq=[[0], []]),
        LIMITS,
        EMPTY,
        e.BadSeqId,
        "row 1 belongs to no sequence",
        {"row": 1},
    ),
    (
        "position",
        columns(tokens=[1, 1], pos=[0, -1]),
        LIMITS,
        EMPTY,
        e.NegativePosition,
        "row 1: position -1",
        {"row": 1, "value": -1},
    ),
    (
        "width",
        columns(embd=V),
        Limits(n_vocab=9, n_seq_max=1, n_embd=4),
        EMPTY,
        e.BadEmbedding,
        "row 0: the embedding is 3 wide, the model takes 4",
        {"row": 0},
    ),
    (
        "NaN",
        columns(embd=[[0, 0], [0, np.nan]]),
        LIMITS,
        EMPTY,
        e.BadEmbedding,
        "row 1: the embedding holds NaN",
        {"row": 1},
    ),
    (
        "memory",
        columns(tokens=[1], seq=1, pos=[8]),
        LIMITS,
        holding(s0=(0, 9), s1=(0, 4)),
        e.MemoryPosition,
        "row 0: sequence 1 starts at position 8, but memory holds it up to 4",
        {"seq_id": 1, "value": 8, "limit": 5},
    ),
    (
        "gap",
        columns(tokens=[1] * 3, seq=[0, 1, 0], pos=[0, 5, 2]),
        LIMITS,
        EMPTY,
        e.PositionGap,
        "row 2: sequence 0 jumps from position 0 to 2",
        {"row": 2, "seq_id": 0, "value": 2, "limit": 1},
    ),
    (
        "gap out of order",
        columns(tokens=[1] * 3, pos=[5, 7, 4]),
        LIMITS,
        EMPTY,
        e.PositionGap,
        "row 1: sequence 0 jumps from position 5 to 7",
        {"row": 1},
    ),
    (
        "decreasing",
        columns(tokens=[1] * 3, pos=[4, 5, 3]),
        LIMITS,
        EMPTY,
        e.PositionDecreasing,
        "row 2: position 3 of sequence 0 comes after 5",
        {"row": 2, "value": 3, "limit": 5},
    ),
    (
        "memory before gap",
        columns(tokens=[1] * 4, seq=[1, 1, 0, 0], pos=[0, 2, 3, 4]),
        LIMITS,
        holding(s0=(0, 5)),
        e.MemoryPosition,
        "sequence 0 starts at position 3",
        {"seq_id": 0},
    ),
    (
        "gap of a lower sequence first",
        columns(tokens=[1] * 3, seq=[1, 0, 0], pos=[3, 0, 2]),
        LIMITS,
        holding(s1=(0, 5)),
        e.PositionGap,
        "sequence 0 jumps",
        {"seq_id": 0},
    ),
    (
        "diverged",
        columns(tokens=[1], seq=[[0, 1]], pos=[5]),
        LIMITS,
        holding(s0=(0, 4), s1=(2, 4)),
        e.CoupledDiverged,
        "row 0 is shared by sequences 0 and 1, but memory holds p0..4 of 0 and p2..4 of 1",
        {"row": 0, "seq_id": 1},
    ),
    (
        "mrope token",
        columns(tokens=[1], pos=[9], n_pos=4),
        MROPE,
        holding(s0=(0, 9)),
        e.MropeTokenPosition,
        "row 0: token at position 9 of sequence 0, but memory holds it up to 9",
        {"value": 9, "limit": 10},
    ),
    (
        "mrope embedding",
        columns(embd=V[:1], pos=[[8], [0], [0], [0]], n_pos=4),
        MROPE,
        holding(s0=(0, 9)),
        e.MropeEmbdPosition,
        "embedding at position 8 .* start at 9",
        {"value": 8, "limit": 9},
    ),
]


@pytest.mark.parametrize(
    ("name", "batch", "limits", "ranges", "error", "text", "fields"), REFUSALS, ids=[r[0] for r in REFUSALS]
)
def test_a_refusal_names_what_and_changes_nothing(
    name: str,
    batch: Batch,
    limits: Limits,
    ranges: SeqRanges,
    error: type[e.BatchError],
    text: str,
    fields: dict[str, Any],
) -> None:
    before, held = contents(batch), (ranges.pos_min.tolist(), ranges.pos_max.tolist())
    with pytest.raises(error, match=text) as caught:
        check(batch, limits, ranges)
    assert type(caught.value) is error
    for field, value in fields.items():
        assert getattr(caught.value, field) == value, field
    assert contents(batch) == before and (ranges.pos_min.tolist(), ranges.pos_max.tolist()) == held


def test_every_code_is_its_own() -> None:
    found = [c for c in vars(e).values() if isinstance(c, type) and issubclass(c, e.PolyseqError)]
    assert len({c.code for c in found}) == len(found)


def test_a_state_for_some_rows_only_is_refused() -> None:
    batch = columns(tokens=[1, 2], state=V)
    before = contents(batch)
    with pytest.raises(e.StateMix, match="row 2"):
        batch.extend([3])
    assert contents(batch) == before


# ---- refusals while rows come in ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda b: b.add(), e.NoContent, "row 1 carries neither"),
        (lambda b: b.add(10), e.BadToken, r"row 1: token 10 is outside the vocabulary \[0, 10\)"),
        (lambda b: b.add(1, seq=2), e.BadSeqId, r"row 1: sequence 2 is outside \[0, 2\)"),
        (lambda b: b.add(1, pos=-1), e.NegativePosition, "row 1: position -1"),
        (lambda b: b.add(embd=[1.0, 2.0]), e.BadEmbedding, "row 1: embd is 2 wide, this batch takes 3 or 5"),
        (lambda b: b.add(embd=[[1.0, 2.0, 3.0]]), e.BadColumn, "embd must be"),
        (
            lambda b: b.extend([1, 2, 3]),
            e.BatchTooLarge,
            r"3 rows after 1 make 4, the batch holds 3 \(n_batch\); 2 more",
        ),
        (lambda b: b.extend([1.5]), e.BadColumn, "tokens must be a column of integers"),
        (lambda b: b.extend([[1], [2]]), e.BadColumn, "tokens must be a column of integers"),
        (lambda b: b.extend([2**40]), e.BadToken, "row 1: tokens value 1099511627776"),
        (lambda b: b.extend([1], pos=[2**40]), e.NegativePosition, "row 1: pos value"),
        (lambda b: b.extend([1], pos=[np.iinfo(np.int32).min]), e.NegativePosition, "far out of range"),
        (lambda b: b.extend([1, 2], seq=[0]), e.BadColumn, "seq has 1 entries where 2"),
        (lambda b: b.extend([1, 2], seq=[0, [1]]), e.BadColumn, "seq is no column: its entries have different shapes"),
        (lambda b: b.extend([1, 2], seq=[[0], 1]), e.BadColumn, "seq mixes"),
        (lambda b: b.extend([1, 2], pos=[0]), e.BadColumn, r"pos has shape \(1,\); 2 token rows take \[2\]"),
        (lambda b: b.extend([1, 2], pos=3), e.BadColumn, "pos must be a column"),
        (lambda b: b.extend([1, 2], output=[True]), e.BadColumn, "output has shape"),
        (lambda b: b.extend([1, 2], embd=np.ones((1, 3))), e.BadColumn, "embd has 1 rows where 2"),
        (lambda b: b.extend(), e.NoContent, "neither tokens nor embeddings"),
    ],
)
def test_rows_that_cannot_come_in_leave_the_batch_as_it_was(
    call: Callable[[Batch], object], error: type[Exception], text: str
) -> None:
    batch = Batch(3, n_seq_max=2, n_vocab=10, n_embd=(3, 5))
    batch.add(4)
    before = contents(batch)
    with pytest.raises(error, match=text):
        call(batch)
    assert contents(batch) == before


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda b: b.extend([1, 2, 3], seq=[[0, 1], [1], [2**40]]), "row 2: seq value"),
        (lambda b: b.extend([1, 2], seq={0, 2**40}), "row 0: seq value"),
        (lambda b: b.extend([1], seq=None), "seq must be an id, a set of ids, or a list"),
        (lambda b: b.extend([1], seq="0"), "seq must be an id, a set of ids, or a list"),
        (lambda b: b.extend([1], output="yes"), "output must be one flag"),
        (lambda b: b.add("3"), "row 0: a token is an id, not '3'"),
        (lambda b: b.add(1, seq=1.5), "row 0: seq must be an id or a set of ids"),
        (lambda b: FlatBatch(token=5).to_batch(), "token and embd are columns"),
    ],
)
def test_columns_of_the_wrong_kind(call: Callable[[Batch], object], text: str) -> None:
    batch = Batch()
    with pytest.raises(e.BatchError, match=text):
        call(batch)
    assert not len(batch)


@pytest.mark.parametrize(
    "empty", [{"embd": np.zeros((0, 3))}, {"tokens": [], "state": np.zeros((0, 3))}, {"tokens": []}]
)
def test_no_rows_leave_no_trace(empty: dict[str, Any]) -> None:
    batch = Batch()
    batch.extend(**empty)
    batch.extend([1, 2], state=V)
    batch.extend(**empty)
    checked = check(batch, LIMITS, EMPTY)
    assert checked.embd is None and checked.state is not None and checked.state.shape == (2, 3)


def test_positions_end_somewhere() -> None:
    last = np.iinfo(np.int32).max
    batch = rows({"token": 1, "pos": last}, {"token": 1})
    with pytest.raises(e.PositionGap, match=f"row 1: its sequence has no position left after {last}"):
        check(batch, LIMITS, EMPTY)


def test_the_first_embedding_fixes_the_width() -> None:
    batch = Batch(n_embd=(3, 5))
    batch.add(embd=np.ones(5))
    with pytest.raises(e.BadEmbedding, match="row 1: embd is 3 wide, this batch takes 5"):
        batch.add(embd=np.ones(3))
    batch.clear()
    batch.add(embd=np.ones(3))


# F09: positions of M-RoPE embedding rows are never broadcast in silence.
def test_mrope_embedding_rows_give_all_sections() -> None:
    batch = Batch(n_pos=4)
    with pytest.raises(e.BadColumn, match=r"pos has shape \(2,\); 2 embedding rows take \[4, 2\]"):
        batch.extend(embd=V, pos=[10, 11])
    with pytest.raises(e.BadColumn, match=r"2 embedding rows of 4 sections take \[8\]"):
        FlatBatch(embd=V, pos=[10, 11]).to_batch(n_pos=4)
    flat = FlatBatch(embd=V, pos=[10, 11, 0, 1, 2, 3, 0, 0]).to_batch(n_pos=4)
    assert check(flat, MROPE, EMPTY).pos.tolist() == [[10, 11], [0, 1], [2, 3], [0, 0]]
    auto = columns(embd=V, n_pos=4)
    assert check(auto, MROPE, holding(s0=(0, 6))).pos.tolist() == [[7, 8]] * 4


# ---- what comes out ------------------------------------------------------------------------------------


def test_one_row_at_a_time_equals_columns() -> None:
    one_by_one = rows(
        {"token": 3, "seq": 1, "output": True, "pos": 7}, {"token": 4, "seq": {0, 2}, "pos": 0}, {"token": 5, "seq": 1}
    )
    at_once = columns(tokens=[3, 4], seq=[[1], [0, 2]], output=[1, 0], pos=[7, 0])
    at_once.extend([5], seq=1)
    assert contents(one_by_one) == contents(at_once)


def test_a_sequence_twice_in_a_row_is_a_set() -> None:
    checked = check(columns(tokens=[1, 2], seq=[[2, 0, 2], [1, 1]]), LIMITS, EMPTY)
    assert checked.seq_ids.tolist() == [0, 2, 1] and checked.seq_offsets.tolist() == [0, 2, 3]


def test_mixed_rows_where_allowed() -> None:
    batch = rows({"token": 7}, {"embd": V[0]}, {"token": 8})
    checked = check(batch, Limits(n_vocab=100, n_seq_max=4, allow_mixed=True), EMPTY)
    assert checked.is_embd is not None and checked.token is not None and checked.embd is not None
    assert checked.is_embd.tolist() == [False, True, False]
    assert checked.token.tolist() == [7, 0, 8]
    assert checked.embd.tolist() == [[0, 0, 0], [1, 1, 1], [0, 0, 0]]


def test_output_all_overrides_flags() -> None:
    checked = check(columns(tokens=[1, 2]), Limits(n_vocab=9, n_seq_max=1, output_all=True), EMPTY)
    assert checked.n_outputs == 2 and checked.output.all()


def test_a_checked_batch_owns_its_rows() -> None:
    batch = columns(tokens=[1, 2, 3])
    checked = check(batch, LIMITS, EMPTY)
    batch.clear()
    batch.extend([9, 9, 9], seq=3)
    assert checked.token is not None
    assert checked.token.tolist() == [1, 2, 3] and checked.seq_ids.tolist() == [0, 0, 0]


def test_equal_positions_and_overlapping_sets_are_legal() -> None:
    check(columns(tokens=[1] * 4, pos=[0, 1, 1, 2]), LIMITS, EMPTY)
    check(columns(tokens=[1] * 3, seq=[[0, 1], [1, 2], [2, 3]], pos=[0, 1, 2]), LIMITS, EMPTY)


def test_flat_batch_defaults() -> None:
    checked = check(FlatBatch(token=[5, 6, 7]).to_batch(), LIMITS, holding(s0=(0, 9)))
    assert checked.pos.tolist() == [[10, 11, 12]]
    assert checked.seq_ids.tolist() == [0, 0, 0]
    assert checked.output.tolist() == [False, False, True]
    with pytest.raises(e.EmptyBatch):
        FlatBatch(token=[]).to_batch()


def reference_positions(checked_ids: list[list[int]], given: list[int | None], held: list[int]) -> list[int]:
    """Row by row, as the C interface fills them."""
    after = [h + 1 for h in held]
    out = []
    for ids, pos in zip(checked_ids, given, strict=True):
        out.append(after[min(ids)] if pos is None else pos)
        for s in ids:
            after[s] = out[-1] + 1
    return out


@given(st.data(), st.booleans())
def test_missing_positions_continue_memory_and_batch(data: st.DataObject, coupled: bool) -> None:
    n = data.draw(st.integers(1, 12))
    sets = st.sets(st.integers(0, 3), min_size=1, max_size=3 if coupled else 1).map(sorted)
    ids = data.draw(st.lists(sets, min_size=n, max_size=n))
    given_pos = data.draw(st.lists(st.none() | st.integers(0, 50), min_size=n, max_size=n))
    held = data.draw(st.lists(st.integers(-1, 9), min_size=4, max_size=4))
    pos = np.array([[np.iinfo(np.int32).min if p is None else p] for p in given_pos], np.int32)
    offsets = np.concatenate(([0], np.cumsum([len(s) for s in ids])))
    ranges = SeqRanges(np.array(held, np.int32), np.array(held, np.int32))
    seq_ids = np.array(list(chain.from_iterable(ids)), np.int32)
    shared = offsets if len(seq_ids) > n else None
    resolved = resolve_positions(pos, seq_ids, shared, BySequence.of(seq_ids, shared), ranges)
    assert resolved[0].tolist() == reference_positions(ids, given_pos, held)


ID_COLUMNS = st.one_of(  # any order; sorted; one row of each
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.lists(st.integers(0, 3), min_size=1, max_size=12).map(sorted),
    st.sets(st.integers(0, 3), min_size=1).map(sorted),
)


@given(ID_COLUMNS)
def test_rows_sorted_already_are_grouped_as_any_others(ids: list[int]) -> None:
    seq_ids = np.array(ids, np.int32)
    seen, by_sort = BySequence.of(seq_ids), BySequence.of(seq_ids, np.arange(len(ids) + 1))
    for name in ("row", "seq", "bounds"):
        assert getattr(seen, name).tolist() == getattr(by_sort, name).tolist()
    assert seen.in_order == (ids == sorted(ids)) and seen.one_each == (len(set(ids)) == len(ids))


@given(ID_COLUMNS, st.lists(st.integers(-1, 9), min_size=4, max_size=4), st.sampled_from([1, 4]))
def test_rows_that_all_continue_need_no_check(ids: list[int], held: list[int], n_pos: int) -> None:
    ranges = SeqRanges(np.array(held, np.int32), np.array(held, np.int32))
    by_seq = BySequence.of(np.array(ids, np.int32))
    made = continue_all(by_seq, n_pos, ranges)
    auto = np.full((len(ids), n_pos), np.iinfo(np.int32).min, np.int32)
    resolved = resolve_positions(auto, by_seq.seq, None, by_seq, ranges)
    assert made.dtype == resolved.dtype and made.tolist() == resolved.tolist()
    for has_token in (None, np.ones(len(ids), np.bool_)):
        check_positions(made[0], by_seq, has_token, ranges, coupled=False)


def test_rows_that_continue_beyond_the_last_position_are_refused_by_row() -> None:
    last = np.iinfo(np.int32).max
    with pytest.raises(e.PositionGap, match=r"row 2: its sequence has no position left"):
        check(columns(tokens=[1] * 3, seq=[1, 0, 0]), LIMITS, holding(s0=(0, last - 1)))


@given(st.data())
def test_sets_map_to_their_rows_in_order(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))
    ids = data.draw(st.lists(st.sets(st.integers(0, 199), min_size=1, max_size=3), min_size=n, max_size=n))
    batch = columns(tokens=[1] * n, seq=[sorted(s) for s in ids], pos=[0] * n)
    checked = check(batch, Limits(n_vocab=9, n_seq_max=200), SeqRanges.empty(200))
    assert_sets(checked, ids)


def assert_sets(checked: CheckedBatch, ids: list[set[int]]) -> None:
    for k in range(checked.n_sets):
        rows_of_k = checked.set_rows[checked.set_offsets[k] : checked.set_offsets[k + 1]].tolist()
        the_set = ids[rows_of_k[0]]
        assert rows_of_k == [i for i, s in enumerate(ids) if s == the_set]
        bits = sum(1 << s for s in the_set)
        assert sum(int(word) << (64 * w) for w, word in enumerate(checked.sets[k])) == bits
    assert len(checked.set_rows) == len(ids)
    assert checked.coupled == any(len(s) > 1 for s in ids)
