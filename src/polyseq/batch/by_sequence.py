"""The (row, sequence) pairs of a batch, sequence by sequence, each in batch order.

Part of step 2: sorted once, used by the position checks and to group the rows that step 3 cuts. Most batches come
sorted, or with one row per sequence; both are seen from the steps between neighbours and then cost no sort.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class BySequence:
    """Pairs of one sequence stand together; the sequences ascend."""

    row: NDArray[np.intp]  # [n_pairs]
    seq: NDArray[np.int32]  # [n_pairs]
    bounds: NDArray[np.intp]  # [n_present + 1] where each sequence begins, and the end
    in_order: bool  # `row` is 0 .. n_pairs-1

    @staticmethod
    def of(seq_ids: NDArray[np.int32], offsets: NDArray[np.int64] | None = None) -> BySequence:
        """Pure. Row i has ids `seq_ids[offsets[i]:offsets[i+1]]`, with None the one id `seq_ids[i]`; all below 256."""
        n = len(seq_ids)
        step = seq_ids[1:] - seq_ids[:-1]
        least = int(step[step.argmin()]) if n > 1 else 1
        if offsets is None and least >= 0:
            bounds = np.arange(n + 1) if least > 0 else _bounds(step)
            return BySequence(np.arange(n), seq_ids, bounds, in_order=True)
        order = seq_ids.astype(np.uint8).argsort(kind="stable")  # one byte each: a linear sort
        seq = seq_ids[order]
        row = order if offsets is None else offsets.searchsorted(order, side="right") - 1
        return BySequence(row, seq, _bounds(seq[1:] - seq[:-1]), in_order=False)

    @property
    def starts(self) -> NDArray[np.intp]:
        """[n_present] where each sequence begins."""
        return self.bounds[:-1]

    @property
    def one_each(self) -> bool:
        """No sequence has a second row."""
        return len(self.bounds) == len(self.row) + 1

    def take(self, column: NDArray[Any]) -> NDArray[Any]:
        """Pure. [n_pairs] a column of rows, pair by pair."""
        return column if self.in_order else column[self.row]

    def steps(self, by_pair: NDArray[np.int32]) -> NDArray[np.int32]:
        """Pure. [n_pairs - 1] from each pair to the next one of its sequence; 0 from one sequence to another."""
        step = by_pair[1:] - by_pair[:-1]
        step[self.bounds[1:-1] - 1] = 0
        return step


def _bounds(step: NDArray[np.int32]) -> NDArray[np.intp]:
    """[n_runs + 1] of a sorted column with these steps between neighbours."""
    new = step.nonzero()[0]
    bounds = np.empty(len(new) + 2, np.intp)
    bounds[0] = 0
    bounds[1:-1] = new
    bounds[1:-1] += 1
    bounds[-1] = len(step) + 1
    return bounds
