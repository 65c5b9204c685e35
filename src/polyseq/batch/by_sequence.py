"""The (row, sequence) pairs of a batch, sequence by sequence, each in batch order.

Part of step 2: sorted once, used by the position checks and to group the rows that step 3 cuts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class BySequence:
    """Pairs of one sequence stand together; the sequences ascend."""

    row: NDArray[np.intp]  # [n_pairs]
    seq: NDArray[np.int32]  # [n_pairs]
    starts: NDArray[np.intp]  # [n_present] where each sequence begins

    @staticmethod
    def of(seq_ids: NDArray[np.int32], offsets: NDArray[np.int64]) -> BySequence:
        """Pure. Row i has ids `seq_ids[offsets[i]:offsets[i+1]]`, all below 256: one byte each, a linear sort."""
        order = seq_ids.astype(np.uint8).argsort(kind="stable")
        seq = seq_ids[order]
        new = (seq[1:] != seq[:-1]).nonzero()[0]
        starts = np.zeros(len(new) + 1, np.intp)
        starts[1:] = new + 1
        single = len(offsets) - 1 == len(seq_ids)
        return BySequence(order if single else offsets.searchsorted(order, side="right") - 1, seq, starts)
