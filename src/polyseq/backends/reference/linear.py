"""x weight^T by whichever call makes BLAS fastest for that many rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Up to here the weights are the larger matrix by far, and BLAS reads them faster as the left factor.
FEW_ROWS = 48
# From here on (the head above all) BLAS is faster with few rows where an input's weights for all outputs lie together.
TALL = 2  # outputs per input
LARGE = 1 << 18  # numbers; less stays in caches


def laid_out(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Pure. The same [n_out, n_in], in the order in which `linear` reads it fastest."""
    n_out, n_in = weight.shape
    apart = n_out >= TALL * n_in and weight.size >= LARGE
    return np.asfortranarray(weight) if apart else np.ascontiguousarray(weight)


def linear(x: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Pure. x [n, n_in], weight [n_out, n_in] -> [n, n_out] f32, contiguous."""
    if len(x) <= FEW_ROWS and weight.flags.c_contiguous:
        return np.ascontiguousarray((weight @ np.ascontiguousarray(x.T)).T)
    return x @ weight.T
