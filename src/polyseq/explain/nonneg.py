"""Least squares with no negative coefficient: time and bytes only ever add up.

Enters: a matrix of features and what was measured. Leaves: the coefficients. Pure NumPy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def nonnegative(a: F64, b: F64) -> F64:
    """Pure. x [n] >= 0 that minimises |a x - b|; a [m, n], b [m] f64.

    The active-set method of Lawson and Hanson, "Solving Least Squares Problems" (1974), chapter 23. Columns are scaled
    first, so that cells and seconds may differ by any factor.
    """
    scale = np.linalg.norm(a, axis=0)
    scale[scale == 0] = 1.0
    scaled = a / scale
    n = a.shape[1]
    x, free = np.zeros(n), np.zeros(n, np.bool_)
    least = 1e-10 * max(1.0, float(np.linalg.norm(b)))
    for _ in range(3 * n + 10):
        slope = scaled.T @ (b - scaled @ x)
        slope[free] = -np.inf
        i = int(np.argmax(slope))
        if slope[i] <= least:
            break
        free[i] = True
        x = _settle(scaled, b, x, free)
    found: F64 = x / scale
    return found


def _settle(a: F64, b: F64, x: F64, free: NDArray[np.bool_]) -> F64:
    """Changes `free`: columns that would become negative leave it. The least-squares point of those that stay."""
    while free.any():
        best = np.zeros_like(x)
        best[free] = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
        if (best[free] > 0).all():
            return best
        negative = free & (best <= 0)
        step = float(np.min(x[negative] / np.maximum(x[negative] - best[negative], 1e-300)))
        x = x + step * (best - x)
        free &= ~negative | (x > 1e-14 * max(1.0, float(x.max())))
        x[~free] = 0.0
    return np.zeros_like(x)
