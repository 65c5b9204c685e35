"""Step 6 for embeddings: one row per sequence, found by sequence id.

Enters: each ubatch's pooled rows, in the order of its `seq_id_unq`. Leaves: the row of a sequence. A table is never
sized by tokens or indexed by a sequence id itself, so few tokens of a high id are as good as any.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import OutputError


class PooledRows:
    """Rows of all ubatches of a call."""

    def __init__(self, seq_ids: Sequence[NDArray[np.int32]], rows: Sequence[NDArray[np.float32]]) -> None:
        """seq_ids[i] [n_seqs] i32 and rows[i] [n_seqs, width] f32 of ubatch i; no sequence is in two of them."""
        found = np.concatenate(seq_ids)
        order = np.argsort(found)
        self.seq_ids: NDArray[np.int32] = found[order]  # [n_seqs] i32, ascending
        self.rows: NDArray[np.float32] = np.concatenate(rows)[order]  # [n_seqs, width] f32
        self.rows.flags.writeable = False

    def row(self, seq_id: int) -> NDArray[np.float32]:
        """[width] f32, no copy. Raises `OutputError` for a sequence that was not in the call."""
        k = int(np.searchsorted(self.seq_ids, seq_id))
        if k == len(self.seq_ids) or self.seq_ids[k] != seq_id:
            some = ", ".join(map(str, self.seq_ids[:8])) + (", ..." if len(self.seq_ids) > 8 else "")
            raise OutputError(f"sequence {seq_id} was not in this call; it had {some}")
        pooled: NDArray[np.float32] = self.rows[k]
        return pooled
