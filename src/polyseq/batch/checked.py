"""What step 2 leaves and step 3 cuts: sound columns, and which rows belong to which set of sequences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.batch.by_sequence import BySequence


@dataclass(frozen=True, slots=True)
class CheckedBatch:
    """A batch that passed every check. Owns its columns; later changes of the `Batch` don't reach it.

    Rows of the distinct set k, in batch order: `set_rows[set_offsets[k]:set_offsets[k+1]]`. Sets are numbered by
    their masks, so in an uncoupled batch by sequence id.
    """

    n_seq_max: int
    token: NDArray[np.int32] | None  # [n_tokens] i32, 0 for embedding rows
    embd: NDArray[np.float32] | None  # [n_tokens, n_embd] f32
    state: NDArray[np.float32] | None  # [n_tokens, n_state] f32
    is_embd: NDArray[np.bool_] | None  # [n_tokens], only where the batch mixes tokens and embeddings
    pos: NDArray[np.int32]  # [n_pos, n_tokens] i32, section-major
    seq_ids: NDArray[np.int32]  # [sum of set sizes] i32, ascending inside a row
    seq_offsets: NDArray[np.int64]  # [n_tokens + 1]
    masks: NDArray[np.uint64]  # [n_tokens, n_words] u64, each row's sequence set
    output: NDArray[np.bool_]  # [n_tokens]
    i_set: NDArray[np.intp]  # [n_tokens] which distinct set a row has
    sets: NDArray[np.uint64]  # [n_sets, n_words] u64
    set_rows: NDArray[np.intp]  # [n_tokens]
    set_offsets: NDArray[np.intp]  # [n_sets + 1]
    n_outputs: int
    coupled: bool  # some row belongs to several sequences

    @staticmethod
    def from_columns(
        *,
        n_seq_max: int,
        token: NDArray[np.int32] | None,
        embd: NDArray[np.float32] | None,
        state: NDArray[np.float32] | None,
        is_embd: NDArray[np.bool_] | None,
        pos: NDArray[np.int32],
        by_seq: BySequence,
        seq_ids: NDArray[np.int32],
        seq_offsets: NDArray[np.int64],
        masks: NDArray[np.uint64],
        output: NDArray[np.bool_],
    ) -> CheckedBatch:
        """Pure. Groups the rows by their sets."""
        coupled = len(seq_ids) > len(masks)
        grouping = _group_coupled(masks) if coupled else _group_single(by_seq)
        i_set, set_rows, set_offsets = grouping
        return CheckedBatch(
            n_seq_max=n_seq_max,
            token=token,
            embd=embd,
            state=state,
            is_embd=is_embd,
            pos=pos,
            seq_ids=seq_ids,
            seq_offsets=seq_offsets,
            masks=masks,
            output=output,
            i_set=i_set,
            sets=masks[set_rows[set_offsets[:-1]]],
            set_rows=set_rows,
            set_offsets=set_offsets,
            n_outputs=int(np.count_nonzero(output)),
            coupled=coupled,
        )

    @property
    def n_tokens(self) -> int:
        return len(self.masks)

    @property
    def n_sets(self) -> int:
        return len(self.sets)

    @property
    def first_seq(self) -> NDArray[np.int32]:
        """[n_tokens] i32, the smallest sequence id of each row."""
        return self.seq_ids if not self.coupled else self.seq_ids[self.seq_offsets[:-1]]


Grouping = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]  # i_set, set_rows, set_offsets


def _group_single(by_seq: BySequence) -> Grouping:
    """One sequence per row: a set is a sequence, in ascending order."""
    n = len(by_seq.row)
    offsets = np.empty(len(by_seq.starts) + 1, np.intp)
    offsets[:-1] = by_seq.starts
    offsets[-1] = n
    i_set = np.empty(n, np.intp)
    i_set[by_seq.row] = np.arange(len(by_seq.starts)).repeat(offsets[1:] - offsets[:-1])
    return i_set, by_seq.row, offsets


def _group_coupled(masks: NDArray[np.uint64]) -> Grouping:
    keys = np.ascontiguousarray(masks).view(np.dtype((np.void, masks.shape[1] * 8)))[:, 0]
    _, i_set, counts = np.unique(keys, return_inverse=True, return_counts=True)
    i_set = i_set.reshape(-1)
    return i_set, np.argsort(i_set, kind="stable"), np.concatenate(([0], np.cumsum(counts)))
