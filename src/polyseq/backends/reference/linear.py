"""x weight^T by whichever calls make BLAS fastest for that many rows.

With few rows the weights are the larger matrix by far, and a large product would copy all of them into an order of
BLAS's own first. Small products are computed straight from where the weights lie, but by one thread each: so the
weights are taken in panels of few columns, and the panels shared between threads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.reference.team import Team

F32 = NDArray[np.float32]

# Multiply-adds up to which BLAS copies nothing and starts no threads (OpenBLAS; found by measuring).
SMALL = 400_000
WIDEST, NARROWEST = 64, 16  # columns of a panel
LARGE = 100_000  # weights from which on sharing them out pays
FEW_ROWS = 48  # up to here BLAS reads the weights faster as the left factor


def linear(x: F32, weight: F32, team: Team) -> F32:
    """Pure. x [n, n_in], weight [n_out, n_in] -> [n, n_out] f32, contiguous."""
    n_columns = panel_columns(len(x), *weight.shape)
    if n_columns:
        return _panels(x, weight.reshape(-1, n_columns, weight.shape[1]), team)
    if len(x) <= FEW_ROWS:
        return np.ascontiguousarray((weight @ x.T).T)
    return x @ weight.T


def panel_columns(n: int, n_out: int, n_in: int) -> int:
    """Pure. Columns of a panel that make products small and divide n_out; 0: none, or no use."""
    if n_out * n_in < LARGE:
        return 0
    n_columns = WIDEST
    while n_columns >= NARROWEST:
        if n * n_columns * n_in <= SMALL and n_out % n_columns == 0:
            return n_columns
        n_columns //= 2
    return 0


def _panels(x: F32, panels: F32, team: Team) -> F32:
    """Pure. panels [n_panels, n_columns, n_in] -> [n, n_panels * n_columns]."""
    products = team.map(lambda part: np.matmul(x, part.swapaxes(1, 2)), np.array_split(panels, team.n_threads))
    out = np.concatenate(products)  # [n_panels, n, n_columns]
    return out.transpose(1, 0, 2).reshape(len(x), -1)
