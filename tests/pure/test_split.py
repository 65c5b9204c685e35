"""Step 3: the invariants of every cut, over generated batches, and the worked examples by value."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batches import N_VOCAB, checked_batches
from polyseq.batch import Batch, CheckedBatch, Limits, SeqRanges, check
from polyseq.errors import CoupledSequences, SplitError
from polyseq.split import Equal, Packed, Seq, Simple, Splitter, Strategy, Ubatch, reason, split_all
from polyseq.split.splitter import Cut

MANY = settings(max_examples=500, deadline=None)


def lengths(*counts: int, interleave: bool = False) -> CheckedBatch:
    seq = np.repeat(np.arange(len(counts)), counts)
    if interleave:
        within = np.concatenate([np.arange(n) for n in counts])
        seq = seq[np.lexsort((seq, within))]
    batch = Batch()
    batch.extend(np.zeros(len(seq), np.int32), seq=seq)
    return check(batch, Limits(n_vocab=1, n_seq_max=len(counts)), SeqRanges.empty(len(counts)))


def cut_of(batch: CheckedBatch, strategy: Strategy, n_ubatch: int) -> list[list[int]]:
    return [u.batch_idxs.tolist() for u in split_all(batch, strategy, n_ubatch)]


def shapes(batch: CheckedBatch, strategy: Strategy, n_ubatch: int) -> list[tuple[int, int]]:
    return [(u.n_seqs, u.n_seq_tokens) for u in split_all(batch, strategy, n_ubatch)]


def rows_of_seq(batch: CheckedBatch, seq_id: int) -> list[int]:
    return [
        r for r in range(batch.n_tokens) if seq_id in batch.seq_ids[batch.seq_offsets[r] : batch.seq_offsets[r + 1]]
    ]


def check_ubatch(batch: CheckedBatch, u: Ubatch) -> None:
    rows = u.batch_idxs
    assert len(rows) == u.n_tokens == len(u.masks) == len(u.output)
    assert u.n_pos == len(batch.pos)
    assert u.pos.reshape(-1).tolist() == [int(batch.pos[j, r]) for j in range(u.n_pos) for r in rows]
    assert u.output.tolist() == batch.output[rows].tolist()
    for name in ("token", "embd", "state", "is_embd"):
        ours, theirs = getattr(u, name), getattr(batch, name)
        assert (ours is None) == (theirs is None), name
        assert ours is None or (ours == theirs[rows]).all(), name
    ids = sorted({s for i in range(u.n_tokens) for s in u.row_seq_ids(i)})
    assert u.seq_id_unq.tolist() == ids
    assert {s: k for s, k in enumerate(u.seq_idx) if k >= 0} == {s: k for k, s in enumerate(ids)}
    for i, row in enumerate(rows):
        assert u.row_seq_ids(i) == batch.seq_ids[batch.seq_offsets[row] : batch.seq_offsets[row + 1]].tolist()


def check_cut(batch: CheckedBatch, strategy: Strategy, n_ubatch: int) -> list[Ubatch]:
    splitter = Splitter(batch)
    ubatches = []
    while (u := splitter.split(strategy, n_ubatch)) is not None:
        splitter.check()
        check_ubatch(batch, u)
        assert 1 <= u.n_tokens <= n_ubatch
        ubatches.append(u)
    rows = [int(r) for u in ubatches for r in u.batch_idxs]
    assert sorted(rows) == list(range(batch.n_tokens)), "every row is used exactly once"
    assert splitter.out_ids.tolist() == [r for r in rows if batch.output[r]]
    for seq_id in {int(s) for s in batch.seq_ids}:
        assert [
            r for r in rows if seq_id in batch.seq_ids[batch.seq_offsets[r] : batch.seq_offsets[r + 1]]
        ] == rows_of_seq(batch, seq_id), "a sequence runs forwards"
    return ubatches


def check_rectangle(u: Ubatch) -> None:
    assert u.equal_seqs and u.n_tokens == u.n_seqs * u.n_seq_tokens
    sets = u.masks.reshape(u.n_seqs, u.n_seq_tokens, -1)
    assert (sets == sets[:, :1]).all(), "rows are laid out set by set"
    union = np.zeros(sets.shape[2], np.uint64)
    for mask in sets[:, 0]:
        assert not (union & mask).any(), "sets are disjoint"
        union |= mask


def test_batches_of_every_content_are_generated() -> None:
    """What is below is tested on: each content, with hidden states and without, of one section and of four."""
    seen = set()

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(checked_batches(coupled=False))
    def look(batch: CheckedBatch) -> None:
        content = "token" if batch.embd is None else "embd" if batch.token is None else "both"
        seen.add((content if batch.is_embd is None else "mixed", batch.state is not None, len(batch.pos)))

    look()
    assert seen == set(product(["token", "embd", "both", "mixed"], [False, True], [1, 4]))


@MANY
@given(checked_batches(), st.integers(1, 40))
def test_simple_takes_flat_order(batch: CheckedBatch, n_ubatch: int) -> None:
    ubatches = check_cut(batch, Simple(), n_ubatch)
    assert [int(r) for u in ubatches for r in u.batch_idxs] == list(range(batch.n_tokens))
    assert all(u.n_tokens == n_ubatch for u in ubatches[:-1])
    assert all((u.n_seqs, u.n_seq_tokens, u.equal_seqs) == (u.n_tokens, 1, False) for u in ubatches)


@MANY
@given(checked_batches(coupled=False), st.integers(1, 40))
def test_packed_takes_flat_order_and_counts_sets(batch: CheckedBatch, n_ubatch: int) -> None:
    ubatches = check_cut(batch, Packed(), n_ubatch)
    assert [int(r) for u in ubatches for r in u.batch_idxs] == list(range(batch.n_tokens))
    assert all(u.n_tokens == n_ubatch for u in ubatches[:-1])
    for u in ubatches:
        assert (u.n_seqs, u.n_seq_tokens, u.equal_seqs) == (len(set(u.first_seq.tolist())), 0, False)


@MANY
@given(checked_batches(), st.integers(1, 40))
def test_equal_is_rectangular(batch: CheckedBatch, n_ubatch: int) -> None:
    for u in check_cut(batch, Equal(), n_ubatch):
        check_rectangle(u)


@MANY
@given(checked_batches(coupled=False), st.integers(1, 40))
def test_sequential_takes_consecutive_ids(batch: CheckedBatch, n_ubatch: int) -> None:
    for u in check_cut(batch, Equal(sequential=True), n_ubatch):
        check_rectangle(u)
        ids = u.first_seq[:: u.n_seq_tokens]
        assert (np.diff(ids) == 1).all()


@MANY
@given(checked_batches(coupled=False), st.integers(1, 8), st.integers(1, 12), st.booleans())
def test_a_tail_is_never_torn(batch: CheckedBatch, k: int, more: int, sequential: bool) -> None:
    ubatches = check_cut(batch, Equal(sequential=sequential, n_keep_tail=k), k + more)
    where = {int(r): i for i, u in enumerate(ubatches) for r in u.batch_idxs}
    for s in range(batch.n_sets):
        tail = batch.set_rows[batch.set_offsets[s] : batch.set_offsets[s + 1]][-k:]
        assert len({where[int(r)] for r in tail}) == 1
    for u in ubatches:
        check_rectangle(u)


@MANY
@given(checked_batches(coupled=True), st.integers(1, 4), st.integers(1, 12))
def test_keep_tail_keeps_order_of_shared_rows(batch: CheckedBatch, k: int, more: int) -> None:
    check_cut(batch, Equal(n_keep_tail=k), k + more)


@MANY
@given(checked_batches(), st.integers(1, 40))
def test_seq_is_one_narrowing_set(batch: CheckedBatch, n_ubatch: int) -> None:
    for u in check_cut(batch, Seq(), n_ubatch):
        assert (u.n_seqs, u.n_seq_tokens, u.equal_seqs) == (1, u.n_tokens, True)
        for before, after in zip(u.masks[:-1], u.masks[1:], strict=True):
            assert not (after & ~before).any()


class Anyhow(Splitter):
    """Never knows that the rows used so far are the batch's first ones."""

    in_order = property(lambda self: False, lambda self, value: None)  # type: ignore[assignment]


@dataclass(frozen=True)
class AnyRectangle(Equal):
    def next_cut(self, splitter: Splitter, n_ubatch: int) -> Cut:
        return self._next_rectangle(splitter, n_ubatch)


@MANY
@given(
    checked_batches(coupled=False),
    st.integers(3, 40),
    st.sampled_from([Simple(), Packed(), Seq(), Equal(), Equal(sequential=True), Equal(n_keep_tail=2)]),
)
def test_short_ways_end_where_the_long_ones_do(batch: CheckedBatch, n_ubatch: int, strategy: Strategy) -> None:
    short, long = Splitter(batch), Anyhow(batch)
    the_long_way = strategy
    if isinstance(strategy, Equal):
        the_long_way = AnyRectangle(strategy.sequential, strategy.n_keep_tail)
    while (u := short.split(strategy, n_ubatch)) is not None:
        v = long.split(the_long_way, n_ubatch)
        assert v is not None and columns_of(u) == columns_of(v)
    assert long.n_left == 0


def columns_of(u: Ubatch) -> dict[str, object]:
    names = (
        "n_seqs",
        "n_seq_tokens",
        "equal_seqs",
        "reason",
        "token",
        "pos",
        "seq_ids",
        "output",
        "batch_idxs",
        "masks",
    )
    values = {name: getattr(u, name) for name in names}
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}


@given(checked_batches(), st.integers(1, 9))
def test_reset_forgets_all(batch: CheckedBatch, n_ubatch: int) -> None:
    splitter = Splitter(batch)
    splitter.split(Simple(), n_ubatch)
    splitter.reset()
    assert splitter.n_left == batch.n_tokens and not len(splitter.out_ids)
    splitter.check()


@given(
    checked_batches(coupled=False),
    st.lists(st.tuples(st.sampled_from([Simple(), Equal(), Seq(), Packed()]), st.integers(1, 9))),
)
def test_strategies_may_take_turns(batch: CheckedBatch, turns: list[tuple[Strategy, int]]) -> None:
    splitter = Splitter(batch)
    rows: list[int] = []
    for strategy, n in [*turns, *[(Simple(), 8)] * batch.n_tokens]:
        u = splitter.split(strategy, n)
        rows += [] if u is None else u.batch_idxs.tolist()
        splitter.check()
    assert sorted(rows) == list(range(batch.n_tokens))


# ---- by value ----------------------------------------------------------------------------------------


def test_four_sequences_of_five() -> None:
    assert shapes(lengths(5, 5, 5, 5), Equal(sequential=True), 8) == [(4, 2), (4, 2), (4, 1)]
    assert shapes(lengths(5, 5, 5, 5), Simple(), 8) == [(8, 1), (8, 1), (4, 1)]


def test_ragged_lengths_cost_a_ubatch() -> None:
    assert shapes(lengths(5, 5, 5, 1), Equal(sequential=True), 8) == [(4, 1), (3, 2), (3, 2)]


def test_packed_leaves_no_short_ubatches() -> None:
    assert shapes(lengths(5, 5, 5, 1), Packed(), 8) == [(2, 0), (3, 0)]
    mixed = lengths(*[16, 24, 40, 400] * 8)
    ubatches = split_all(mixed, Packed(), 512)
    assert [u.n_tokens for u in ubatches] == [512] * 7 + [256]
    assert len(split_all(mixed, Equal(sequential=True), 512)) > 8


def test_interleaved_rows_are_laid_out_set_by_set() -> None:
    assert cut_of(lengths(3, 3, 3, interleave=True), Equal(sequential=True), 9) == [[0, 3, 6, 1, 4, 7, 2, 5, 8]]


@pytest.mark.parametrize(
    ("counts", "sequential", "expected"),
    [
        ((5,), False, [(1, 3), (1, 2)]),
        ((2, 3), True, [(1, 2), (1, 3)]),
        ((3, 3), False, [(1, 3), (1, 3)]),
        ((6,), False, [(1, 4), (1, 2)]),
        ((2, 2), False, [(2, 2)]),
    ],
)
def test_keep_tail_by_value(counts: tuple[int, ...], sequential: bool, expected: list[tuple[int, int]]) -> None:
    assert shapes(lengths(*counts), Equal(sequential=sequential, n_keep_tail=2), 4) == expected


def shared(*sets: set[int]) -> CheckedBatch:
    batch = Batch()
    for ids in sets:
        batch.add(1, seq=ids)
    return check(batch, Limits(n_vocab=N_VOCAB, n_seq_max=8), SeqRanges.empty(8))


def test_overlapping_sets_never_run_backwards() -> None:
    assert cut_of(shared({0}, {1}, {0, 1}, {0}, {1}), Equal(), 4) == [[0, 1], [2], [3, 4]]
    assert cut_of(shared({0, 1}, {1, 2}, {2, 3}), Equal(), 8) == [[0], [1], [2]]


@pytest.mark.parametrize("strategy", [Equal(sequential=True), Packed()])
def test_streams_refuse_shared_rows_by_name(strategy: Strategy) -> None:
    splitter = Splitter(shared({0}, {0, 1, 2, 3}))
    with pytest.raises(CoupledSequences, match=r"row 1 is shared by sequences 0, 1, 2, 3.*unified"):
        splitter.split(strategy, 8)
    assert splitter.n_used == 0


def test_sizes_that_cannot_work_are_refused() -> None:
    with pytest.raises(SplitError, match="n_ubatch is 0"):
        Splitter(lengths(3)).split(Simple(), 0)
    with pytest.raises(SplitError, match=r"n_ubatch is 2.*last 2 rows.*at least 3"):
        Splitter(lengths(3)).split(Equal(n_keep_tail=2), 2)


def test_a_ubatch_survives_its_batch() -> None:
    batch = Batch()
    batch.extend([1, 2, 3], output=True)
    u = split_all(check(batch, Limits(n_vocab=10, n_seq_max=1), SeqRanges.empty(1)), Simple(), 8)[0]
    batch.clear()
    batch.extend([7, 7, 7])
    assert u.token is not None
    assert u.token.tolist() == [1, 2, 3] and u.pos.tolist() == [[0, 1, 2]]


def test_many_shared_rows_are_cut_in_a_moment() -> None:
    batch = shared(*[{0, 1}, {0}, {1}] * 300)
    for strategy in (Seq(), Equal()):
        check_cut(batch, strategy, 512)


# ---- why a cut ended -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "strategy", "n_ubatch", "reasons"),
    [
        (lengths(5), Simple(), 2, [reason.FULL, reason.FULL, reason.BATCH_ENDED]),
        (lengths(3, 3), Packed(), 4, [reason.FULL, reason.BATCH_ENDED]),
        (lengths(2, 1), Seq(), 8, [reason.SEQUENCE_ENDED, reason.BATCH_ENDED]),
        (lengths(3), Seq(), 2, [reason.FULL, reason.BATCH_ENDED]),
        (lengths(5, 5, 5, 1), Equal(sequential=True), 8, [reason.SEQUENCE_ENDED, reason.FULL, reason.BATCH_ENDED]),
        (lengths(3, 3), Equal(n_keep_tail=2), 4, [reason.TAIL, reason.BATCH_ENDED]),
        (shared({0}, {1}, {0, 1}), Equal(), 8, [reason.OVERLAP, reason.BATCH_ENDED]),
        (shared({0}, {0, 1}, {0}), Equal(), 1, [reason.WAITS, reason.FULL, reason.BATCH_ENDED]),
        (shared({0}, {2}), Equal(sequential=True), 8, [reason.NOT_CONSECUTIVE, reason.BATCH_ENDED]),
    ],
)
def test_the_reason_a_cut_ended(batch: CheckedBatch, strategy: Strategy, n_ubatch: int, reasons: list[str]) -> None:
    assert [u.reason for u in split_all(batch, strategy, n_ubatch)] == reasons
