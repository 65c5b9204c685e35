"""Which texts go into one call: as many whole ones as fit its tokens and its sequences.

Enters: lengths. Leaves: calls, each a list of texts. Texts of like length come together, which is what attention over
whole sequences is fastest with; inside a call the memory's cut fills its ubatches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def pack(lengths: Sequence[int], *, n_batch: int, n_seq_max: int) -> list[NDArray[np.intp]]:
    """Pure. Texts of each call, the longest first. No length is above n_batch."""
    order = np.argsort(-np.asarray(lengths, np.intp), kind="stable")
    ends = np.cumsum(np.asarray(lengths, np.intp)[order])
    calls = []
    first = 0
    while first < len(order):
        done = int(ends[first - 1]) if first else 0
        n_fit = int(np.searchsorted(ends, done + n_batch, side="right")) - first
        n = min(n_fit, n_seq_max)
        calls.append(order[first : first + n])
        first += n
    return calls
