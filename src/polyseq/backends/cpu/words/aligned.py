"""Arrays that start where a cache line (or a page) does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

LINE_BYTES = 64


def zeros(shape: tuple[int, ...], dtype: DTypeLike, *, align: int = LINE_BYTES) -> NDArray[Any]:
    """Pure. Zeros; pages are taken only once something is written to them."""
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(n_bytes + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + n_bytes].view(dtype).reshape(shape)


def address(array: NDArray[Any]) -> int:
    """Pure. Where its first element lies."""
    return int(array.__array_interface__["data"][0])
