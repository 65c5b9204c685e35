"""Rows of a batch that a cut takes: a slice where they are neighbours in batch order, else their indexes.

Columns are cut by either; by a slice nothing is copied.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = slice | NDArray[np.intp]  # a slice has start and stop and no step


def n_rows(rows: Rows) -> int:
    """Pure. How many."""
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def row_indexes(rows: Rows) -> NDArray[np.intp]:
    """Pure. [n] their indexes in the batch."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
