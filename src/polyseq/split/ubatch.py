"""What step 3 leaves: one block of rows that is placed and computed at once.

A Ubatch owns its columns and survives the batch it was cut from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.batch.checked import CheckedBatch
from polyseq.batch.seqset import ids_of


@dataclass(frozen=True, slots=True)
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
    seq_offsets: NDArray[np.int64]  # [n_tokens + 1]
    masks: NDArray[np.uint64]  # [n_tokens, n_words] u64
    output: NDArray[np.bool_]  # [n_tokens]
    batch_idxs: NDArray[np.intp]  # [n_tokens] ubatch row -> batch row
    n_seq_max: int
    reason: str  # why the cut ended here, of split.reason

    @property
    def seq_id_unq(self) -> NDArray[np.int32]:
        """[n_seqs_unq] i32, the distinct sequence ids, ascending."""
        return ids_of(np.bitwise_or.reduce(self.masks, axis=0))

    @property
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

    @property
    def coupled(self) -> bool:
        """Some row belongs to several sequences."""
        return len(self.seq_ids) > self.n_tokens

    @property
    def first_seq(self) -> NDArray[np.int32]:
        """[n_tokens] i32, the smallest sequence id of each row."""
        return self.seq_ids[self.seq_offsets[:-1]] if self.coupled else self.seq_ids

    def row_seq_ids(self, i: int) -> list[int]:
        """The sequence ids of row i, ascending."""
        return [int(s) for s in self.seq_ids[self.seq_offsets[i] : self.seq_offsets[i + 1]]]


def assemble(
    batch: CheckedBatch, rows: NDArray[np.intp], *, n_seqs: int, n_seq_tokens: int, equal_seqs: bool, reason: str
) -> Ubatch:
    """Pure. Copies the chosen rows of a batch, in the order given."""
    n = len(rows)
    if batch.coupled:
        counts = (batch.seq_offsets[1:] - batch.seq_offsets[:-1])[rows]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        seq_ids = batch.seq_ids[np.repeat(batch.seq_offsets[rows], counts) + within]
    else:
        offsets = np.arange(n + 1)
        seq_ids = batch.seq_ids[rows]
    return Ubatch(
        equal_seqs=equal_seqs,
        n_tokens=n,
        n_seqs=n_seqs,
        n_seq_tokens=n_seq_tokens,
        n_pos=len(batch.pos),
        token=None if batch.token is None else batch.token[rows],
        embd=None if batch.embd is None else batch.embd[rows],
        state=None if batch.state is None else batch.state[rows],
        is_embd=None if batch.is_embd is None else batch.is_embd[rows],
        pos=batch.pos[:, rows],
        seq_ids=seq_ids,
        seq_offsets=offsets,
        masks=batch.masks[rows],
        output=batch.output[rows],
        batch_idxs=rows,
        n_seq_max=batch.n_seq_max,
        reason=reason,
    )
