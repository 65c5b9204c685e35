"""The whole cut: sequences are never torn, ubatches are filled, what cannot fit is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batches import checked_batches
from polyseq.batch import Batch, CheckedBatch, Limits, SeqRanges, check
from polyseq.errors import SequenceTooLong, SharedRow
from polyseq.split import Ubatch, Whole, split_all


def batch_of(seq: list[int]) -> CheckedBatch:
    batch = Batch()
    batch.extend(np.zeros(len(seq), np.int32), seq=seq)
    return check(batch, Limits(n_vocab=1, n_seq_max=max(seq) + 1), SeqRanges.empty(max(seq) + 1))


def lengths_in(ubatch: Ubatch) -> list[int]:
    change = np.flatnonzero(np.diff(ubatch.seq_ids)) + 1
    return np.diff([0, *change, ubatch.n_tokens]).tolist()


def test_first_fit_by_length_fills_ubatches() -> None:
    batch = batch_of(np.repeat(np.arange(5), [3, 8, 2, 5, 3]).tolist())
    ubatches = split_all(batch, Whole(), 10)
    assert [u.seq_id_unq.tolist() for u in ubatches] == [[1, 2], [0, 3], [4]]
    assert [lengths_in(u) for u in ubatches] == [[8, 2], [5, 3], [3]]
    assert [(u.n_seqs, u.n_seq_tokens, u.equal_seqs) for u in ubatches] == [(2, 0, False), (2, 0, False), (1, 3, True)]


def test_rows_of_a_sequence_come_together_in_order_however_they_were_handed_in() -> None:
    (ubatch,) = split_all(batch_of([2, 0, 2, 1, 0, 2]), Whole(), 6)
    assert ubatch.batch_idxs.tolist() == [0, 2, 5, 1, 4, 3]
    assert ubatch.pos[0].tolist() == [0, 1, 2, 0, 1, 0]


@settings(max_examples=200, deadline=None)
@given(checked_batches(coupled=False), st.integers(0, 30))
def test_no_sequence_is_torn_and_none_is_left_out_that_would_have_fitted(batch: CheckedBatch, spare: int) -> None:
    sizes = np.diff(batch.set_offsets)
    n_ubatch = int(sizes.max()) + spare
    ubatches = split_all(batch, Whole(), n_ubatch)
    seen = [s for u in ubatches for s in u.seq_id_unq.tolist()]
    assert sorted(seen) == np.unique(batch.first_seq).tolist()
    assert sorted(i for u in ubatches for i in u.batch_idxs.tolist()) == list(range(batch.n_tokens))
    for i, u in enumerate(ubatches):
        assert u.n_tokens <= n_ubatch
        later = [n for v in ubatches[i + 1 :] for n in lengths_in(v)]
        assert not later or min(later) > n_ubatch - u.n_tokens
        order = np.flatnonzero(np.diff(u.seq_ids) == 0)
        assert (np.diff(u.batch_idxs)[order] > 0).all()


def test_a_sequence_above_n_ubatch_is_named_with_what_would_do() -> None:
    with pytest.raises(SequenceTooLong, match=r"sequence 1 has 9 tokens, but n_ubatch is 8 .* set n_ubatch to 9") as e:
        split_all(batch_of([0] * 3 + [1] * 9), Whole(), 8)
    assert (e.value.seq_id, e.value.value, e.value.limit, e.value.row) == (1, 9, 8, 3)


def test_shared_rows_are_refused() -> None:
    batch = Batch()
    batch.extend([0, 0], seq={0, 1})
    with pytest.raises(SharedRow, match="row 0 is shared"):
        split_all(check(batch, Limits(n_vocab=1, n_seq_max=2), SeqRanges.empty(2)), Whole(), 8)
