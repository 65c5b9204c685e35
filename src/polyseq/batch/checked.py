"""What step 2 leaves and step 3 cuts: sound columns, and which rows belong to which set of sequences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
        seq_ids: NDArray[np.int32],
        seq_offsets: NDArray[np.int64],
        masks: NDArray[np.uint64],
        output: NDArray[np.bool_],
    ) -> CheckedBatch:
        """Pure. Groups the rows by their sets."""
        coupled = len(seq_ids) > len(masks)
        i_set, first_rows = _group_coupled(masks) if coupled else _group_single(seq_ids)
        small = i_set.astype(np.uint8) if len(first_rows) <= 256 else i_set
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
            sets=masks[first_rows],
            set_rows=np.argsort(small, kind="stable"),
            set_offsets=np.concatenate(([0], np.cumsum(np.bincount(i_set, minlength=len(first_rows))))),
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


def _group_single(seq_ids: NDArray[np.int32]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(set of each row, one row of each set); sets by ascending sequence id."""
    first = np.full(256, -1, np.intp)
    first[seq_ids[::-1]] = np.arange(len(seq_ids) - 1, -1, -1)
    present = first >= 0
    number = np.cumsum(present) - 1
    return number[seq_ids], first[present]


def _group_coupled(masks: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    keys = np.ascontiguousarray(masks).view(np.dtype((np.void, masks.shape[1] * 8)))[:, 0]
    _, first, i_set = np.unique(keys, return_index=True, return_inverse=True)
    return i_set.reshape(-1), first
