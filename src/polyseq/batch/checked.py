"""What step 2 leaves and step 3 cuts: sound columns, and which rows belong to which set of sequences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.batch.by_sequence import BySequence
from polyseq.batch.seqset import n_words, single_masks, union_by_row
from polyseq.lazy import lazy

Grouping = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]  # i_set, set_rows, set_offsets


@dataclass(frozen=True)  # no slots: what few readers need is worked out when first asked for
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
    shared_offsets: NDArray[np.int64] | None  # [n_tokens + 1] into seq_ids; None: one sequence per row
    output: NDArray[np.bool_]  # [n_tokens]
    by_seq: BySequence  # the pairs of seq_ids, sorted
    span: NDArray[np.int32] | None = None  # [n_tokens] i32 the first row of each row's span, -1; None: no spans

    @property
    def n_tokens(self) -> int:
        return len(self.output)

    @property
    def n_sets(self) -> int:
        return len(self.set_offsets) - 1

    @property
    def coupled(self) -> bool:
        """Some row belongs to several sequences."""
        return self.shared_offsets is not None

    @lazy
    def n_outputs(self) -> int:
        """Rows whose output is wanted."""
        return int(np.count_nonzero(self.output))

    # ---- each row's sequences ----------------------------------------------------------------------------

    @lazy
    def seq_offsets(self) -> NDArray[np.int64]:
        """[n_tokens + 1] row i has `seq_ids[seq_offsets[i]:seq_offsets[i+1]]`."""
        return np.arange(self.n_tokens + 1) if self.shared_offsets is None else self.shared_offsets

    @property
    def first_seq(self) -> NDArray[np.int32]:
        """[n_tokens] i32, the smallest sequence id of each row."""
        return self.seq_ids if self.shared_offsets is None else self.seq_ids[self.shared_offsets[:-1]]

    @lazy
    def masks(self) -> NDArray[np.uint64]:
        """[n_tokens, n_words] u64, each row's sequence set."""
        words = n_words(self.n_seq_max)
        if self.shared_offsets is None:
            return single_masks(self.seq_ids, words)
        return union_by_row(self.seq_ids, self.shared_offsets, words)

    # ---- rows by their sets ------------------------------------------------------------------------------

    @property
    def set_rows(self) -> NDArray[np.intp]:
        """[n_tokens] the rows, set after set."""
        return self._by_mask[1] if self.coupled else self.by_seq.row

    @property
    def set_offsets(self) -> NDArray[np.intp]:
        """[n_sets + 1] where each set begins in `set_rows`, and the end."""
        return self._by_mask[2] if self.coupled else self.by_seq.bounds

    @lazy
    def i_set(self) -> NDArray[np.intp]:
        """[n_tokens] which distinct set a row has."""
        if self.coupled:
            return self._by_mask[0]
        bounds = self.by_seq.bounds
        i_set = np.empty(self.n_tokens, np.intp)
        i_set[self.by_seq.row] = np.arange(self.n_sets).repeat(bounds[1:] - bounds[:-1])
        return i_set

    @lazy
    def sets(self) -> NDArray[np.uint64]:
        """[n_sets, n_words] u64."""
        return self.masks[self.set_rows[self.set_offsets[:-1]]]

    @lazy
    def _by_mask(self) -> Grouping:
        """Where rows are shared, a set is a mask; else it is a sequence."""
        masks = self.masks
        keys = np.ascontiguousarray(masks).view(np.dtype((np.void, masks.shape[1] * 8)))[:, 0]
        _, i_set, counts = np.unique(keys, return_inverse=True, return_counts=True)
        i_set = i_set.reshape(-1)
        return i_set, np.argsort(i_set, kind="stable"), np.concatenate(([0], np.cumsum(counts)))
