"""What step 3 leaves: one block of rows that is placed and computed at once.

A Ubatch survives the batch it was cut from: its columns are its own, or parts of the checked batch's, which never
change.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from polyseq.batch.checked import CheckedBatch
from polyseq.batch.seqset import n_words, single_masks, union_by_row
from polyseq.split.rows import Rows, n_rows, row_indexes


@dataclass(frozen=True)  # no slots: what few readers need is worked out when first asked for
class Ubatch:
    """llama.cpp's `llama_ubatch`: `n_seqs` sequence sets of `n_seq_tokens` rows each, laid out set by set.

    Where `equal_seqs` is False, rows stand in batch order: the simple cut counts every row as a set of its own, the
    packed cut counts distinct sets and has no rectangle (`n_seq_tokens` 0).
    """

    equal_seqs: bool
    n_tokens: int  # = n_seqs * n_seq_tokens, except in the packed cut
    n_seqs: int
    n_seq_tokens: int
    n_pos: int
    token: NDArray[np.int32] | None  # [n_tokens] i32
    embd: NDArray[np.float32] | None  # [n_tokens, n_embd] f32
    state: NDArray[np.float32] | None  # [n_tokens, n_state] f32
    is_embd: NDArray[np.bool_] | None  # [n_tokens], mixed batches only
    pos: NDArray[np.int32]  # [n_pos, n_tokens] i32: flattened it is section-major with this ubatch's n_tokens
    seq_ids: NDArray[np.int32]  # [sum of set sizes] i32, row after row
    shared_offsets: NDArray[np.int64] | None  # [n_tokens + 1] into seq_ids; None: one sequence per row
    output: NDArray[np.bool_]  # [n_tokens]
    rows: Rows  # of the batch, in the order of this ubatch
    n_seq_max: int
    reason: str  # why the cut ended here, of split.reason

    @cached_property
    def batch_idxs(self) -> NDArray[np.intp]:
        """[n_tokens] ubatch row -> batch row."""
        return row_indexes(self.rows)

    @cached_property
    def out_rows(self) -> NDArray[np.intp]:
        """[n_outputs] the rows of this ubatch whose output is wanted, ascending."""
        return self.output.nonzero()[0]

    # ---- each row's sequences ----------------------------------------------------------------------------

    @property
    def coupled(self) -> bool:
        """Some row belongs to several sequences."""
        return self.shared_offsets is not None

    @cached_property
    def seq_offsets(self) -> NDArray[np.int64]:
        """[n_tokens + 1] row i has `seq_ids[seq_offsets[i]:seq_offsets[i+1]]`."""
        return np.arange(self.n_tokens + 1) if self.shared_offsets is None else self.shared_offsets

    @property
    def first_seq(self) -> NDArray[np.int32]:
        """[n_tokens] i32, the smallest sequence id of each row."""
        return self.seq_ids if self.shared_offsets is None else self.seq_ids[self.shared_offsets[:-1]]

    @cached_property
    def masks(self) -> NDArray[np.uint64]:
        """[n_tokens, n_words] u64, each row's sequence set."""
        words = n_words(self.n_seq_max)
        if self.shared_offsets is None:
            return single_masks(self.seq_ids, words)
        return union_by_row(self.seq_ids, self.shared_offsets, words)

    def row_seq_ids(self, i: int) -> list[int]:
        """The sequence ids of row i, ascending."""
        return [int(s) for s in self.seq_ids[self.seq_offsets[i] : self.seq_offsets[i + 1]]]

    # ---- the sequences present ---------------------------------------------------------------------------

    @cached_property
    def seq_id_unq(self) -> NDArray[np.int32]:
        """[n_seqs_unq] i32, the distinct sequence ids, ascending."""
        return np.bincount(self.seq_ids).nonzero()[0].astype(np.int32)

    @cached_property
    def seq_idx(self) -> NDArray[np.int32]:
        """[n_seq_max] i32, sequence id -> index in `seq_id_unq`, -1 absent."""
        unq = self.seq_id_unq
        index = np.full(self.n_seq_max, -1, np.int32)
        index[unq] = np.arange(len(unq))
        return index

    @property
    def n_seqs_unq(self) -> int:
        """Distinct sequence ids."""
        return len(self.seq_id_unq)


def assemble(
    batch: CheckedBatch, rows: Rows, *, n_seqs: int, n_seq_tokens: int, equal_seqs: bool, reason: str
) -> Ubatch:
    """Pure. The chosen rows of a batch, in the order given."""
    seq_ids, offsets = (batch.seq_ids[rows], None) if batch.shared_offsets is None else _shared_ids(batch, rows)
    pos = batch.pos[:, rows]
    return Ubatch(
        equal_seqs=equal_seqs,
        n_tokens=n_rows(rows),
        n_seqs=n_seqs,
        n_seq_tokens=n_seq_tokens,
        n_pos=len(pos),
        token=None if batch.token is None else batch.token[rows],
        embd=None if batch.embd is None else batch.embd[rows],
        state=None if batch.state is None else batch.state[rows],
        is_embd=None if batch.is_embd is None else batch.is_embd[rows],
        pos=pos if len(pos) == 1 else np.ascontiguousarray(pos),
        seq_ids=seq_ids,
        shared_offsets=offsets,
        output=batch.output[rows],
        rows=rows,
        n_seq_max=batch.n_seq_max,
        reason=reason,
    )


def _shared_ids(batch: CheckedBatch, rows: Rows) -> tuple[NDArray[np.int32], NDArray[np.int64] | None]:
    """(ids of these rows, [n + 1] their offsets, None where each has one)."""
    counts = (batch.seq_offsets[1:] - batch.seq_offsets[:-1])[rows]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    ids = batch.seq_ids[np.repeat(batch.seq_offsets[:-1][rows], counts) + within]
    return ids, offsets if len(ids) > len(counts) else None
