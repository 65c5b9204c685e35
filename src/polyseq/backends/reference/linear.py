"""x weight^T by whichever call makes BLAS fastest for that many rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Up to here the weights are the larger matrix by far, and BLAS reads them faster as the left factor.
FEW_ROWS = 48


def linear(x: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Pure. x [n, n_in], weight [n_out, n_in] -> [n, n_out] f32, contiguous."""
    if len(x) <= FEW_ROWS:
        return np.ascontiguousarray((weight @ x.T).T)
    return x @ weight.T
