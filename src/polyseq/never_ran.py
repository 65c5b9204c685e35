"""Step 6 for a call that ended early: which of its rows have no result, and why.

Enters: the ubatches that were not finished. Leaves: errors for whoever asks for their rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import OutputError


@dataclass(frozen=True, slots=True)
class NeverRan:
    """What is missing from a call that ended early."""

    rows: NDArray[np.intp]  # of the batch
    seq_ids: NDArray[np.int32]  # whose rows they are
    why: str  # the ubatch that failed, and how

    def refuse_row(self, i: int) -> None:
        """Pure. Raises `OutputError` if batch row i never ran."""
        if len(self.rows) and i in self.rows:
            raise OutputError(f"row {i} was never computed: {self.why}", row=i)

    def refuse_seq(self, seq_id: int) -> None:
        """Pure. Raises `OutputError` if a row of the sequence never ran."""
        if seq_id in self.seq_ids:
            raise OutputError(f"sequence {seq_id} was never computed: {self.why}")

    def refuse_all(self) -> None:
        """Pure. Raises `OutputError` if any row never ran."""
        if len(self.rows):
            raise OutputError(f"rows {some(self.rows)} were never computed: {self.why}; ask for rows one by one")


NOTHING = NeverRan(np.zeros(0, np.intp), np.zeros(0, np.int32), "")


def some(rows: NDArray[np.intp]) -> str:
    """A few row numbers in words."""
    shown = ", ".join(map(str, rows[:8]))
    return shown if len(rows) <= 8 else f"{shown}, ... ({len(rows)} in all)"
