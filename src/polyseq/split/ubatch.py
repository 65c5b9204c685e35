"""What step 3 leaves: one block of rows that is placed and computed at once.

It says which rows; a column is taken from the checked batch, which never changes, when it is first asked for. So a
Ubatch survives the `Batch` that the caller filled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.batch.checked import CheckedBatch
from polyseq.batch.seqset import n_words, single_masks, union_by_row
from polyseq.lazy import lazy
from polyseq.split.rows import Rows, n_rows, row_indexes


@dataclass(frozen=True)  # no slots: columns are kept once taken
class Ubatch:
    """llama.cpp's `llama_ubatch`: `n_seqs` sequence sets of `n_seq_tokens` rows each, laid out set by set.

    Where `equal_seqs` is False, rows stand in batch order: the simple cut counts every row as a set of its own, the
    packed cut counts distinct sets and has no rectangle (`n_seq_tokens` 0).
    """

    batch: CheckedBatch
    rows: Rows  # of the batch, in the order of this ubatch
    n_seqs: int
    n_seq_tokens: int
    equal_seqs: bool
    reason: str  # why the cut ended here, of split.reason

    @lazy
    def n_tokens(self) -> int:
        """= n_seqs * n_seq_tokens, except in the packed cut."""
        return n_rows(self.rows)

    @property
    def n_pos(self) -> int:
        """Position values per row."""
        return len(self.batch.pos)

    @property
    def n_seq_max(self) -> int:
        """Sequences, ids 0 .. n_seq_max-1."""
        return self.batch.n_seq_max

    # ---- columns -----------------------------------------------------------------------------------------

    @lazy
    def token(self) -> NDArray[np.int32] | None:
        """[n_tokens] i32."""
        return None if self.batch.token is None else self.batch.token[self.rows]

    @lazy
    def embd(self) -> NDArray[np.float32] | None:
        """[n_tokens, n_embd] f32."""
        return None if self.batch.embd is None else self.batch.embd[self.rows]

    @lazy
    def state(self) -> NDArray[np.float32] | None:
        """[n_tokens, n_state] f32."""
        return None if self.batch.state is None else self.batch.state[self.rows]

    @lazy
    def is_embd(self) -> NDArray[np.bool_] | None:
        """[n_tokens], mixed batches only."""
        return None if self.batch.is_embd is None else self.batch.is_embd[self.rows]

    @lazy
    def pos(self) -> NDArray[np.int32]:
        """[n_pos, n_tokens] i32: flattened it is section-major with this ubatch's n_tokens."""
        pos = self.batch.pos[:, self.rows]
        return pos if len(pos) == 1 else np.ascontiguousarray(pos)

    @lazy
    def last_seen(self) -> NDArray[np.int32] | None:
        """[n_tokens] i32, the last position that each row sees: its own, or its span's last. None: each its own."""
        if self.batch.span is None:
            return None
        pos, span = self.pos[0], self.batch.span[self.rows]
        inside = span >= 0
        end = np.full(self.batch.n_tokens, -1, np.int32)
        np.maximum.at(end, span[inside], pos[inside])
        return np.where(inside, end[span], pos)

    @lazy
    def output(self) -> NDArray[np.bool_]:
        """[n_tokens] whose output is wanted."""
        return self.batch.output[self.rows]

    @lazy
    def batch_idxs(self) -> NDArray[np.intp]:
        """[n_tokens] ubatch row -> batch row."""
        return row_indexes(self.rows)

    @lazy
    def out_rows(self) -> NDArray[np.int32]:
        """[n_outputs] i32, the rows of this ubatch whose output is wanted, ascending."""
        return self.output.nonzero()[0].astype(np.int32)

    @property
    def out_ids(self) -> NDArray[np.intp]:
        """[n_outputs] their rows in the batch."""
        return self.rows.start + self.out_rows if isinstance(self.rows, slice) else self.rows[self.out_rows]

    # ---- each row's sequences ----------------------------------------------------------------------------

    @property
    def seq_ids(self) -> NDArray[np.int32]:
        """[sum of set sizes] i32, row after row."""
        return self._ids[0]

    @property
    def coupled(self) -> bool:
        """Some row belongs to several sequences."""
        return self._ids[1] is not None

    @lazy
    def seq_offsets(self) -> NDArray[np.int64]:
        """[n_tokens + 1] row i has `seq_ids[seq_offsets[i]:seq_offsets[i+1]]`."""
        shared = self._ids[1]
        return np.arange(self.n_tokens + 1) if shared is None else shared

    @property
    def first_seq(self) -> NDArray[np.int32]:
        """[n_tokens] i32, the smallest sequence id of each row."""
        ids, shared = self._ids
        return ids if shared is None else ids[shared[:-1]]

    @lazy
    def masks(self) -> NDArray[np.uint64]:
        """[n_tokens, n_words] u64, each row's sequence set."""
        words = n_words(self.n_seq_max)
        ids, shared = self._ids
        return single_masks(ids, words) if shared is None else union_by_row(ids, shared, words)

    @lazy
    def _ids(self) -> tuple[NDArray[np.int32], NDArray[np.int64] | None]:
        """(ids of the rows, row after row; [n_tokens + 1] their offsets, None: one sequence per row)."""
        batch, rows = self.batch, self.rows
        if batch.shared_offsets is None:
            return batch.seq_ids[rows], None
        counts = (batch.seq_offsets[1:] - batch.seq_offsets[:-1])[rows]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        ids = batch.seq_ids[np.repeat(batch.seq_offsets[:-1][rows], counts) + within]
        return ids, offsets if len(ids) > len(counts) else None

    def row_seq_ids(self, i: int) -> list[int]:
        """The sequence ids of row i, ascending."""
        return [int(s) for s in self.seq_ids[self.seq_offsets[i] : self.seq_offsets[i + 1]]]

    # ---- the sequences present ---------------------------------------------------------------------------

    @lazy
    def seq_id_unq(self) -> NDArray[np.int32]:
        """[n_seqs_unq] i32, the distinct sequence ids, ascending."""
        return np.bincount(self.seq_ids).nonzero()[0].astype(np.int32)

    @lazy
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
