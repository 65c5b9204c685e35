"""Memory for what is made on the way from blocks to panels, used again for every slice of rows.

New memory has to be cleared by the system first, which takes longer than most of what is done in it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from polyseq.backends.cpu.words.aligned import LINE_BYTES, zeros

_AT_ONCE = 1 << 16  # places looked up at a time


class Scratch:
    """Belongs to one thread. Arrays from it are valid until `clear`."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)
        self._used = 0

    def clear(self) -> None:
        """Everything is free again, and there is as much as was asked for until now."""
        if self._used > len(self._bytes):
            self._bytes = zeros((self._used,), np.uint8)
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Changes what is free: an array with anything in it."""
        start = self._used
        self._used += -(-math.prod(shape) * np.dtype(dtype).itemsize // LINE_BYTES) * LINE_BYTES
        if self._used > len(self._bytes):
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, self._bytes, start)

    def copy(self, x: NDArray[Any]) -> NDArray[Any]:
        """Changes what is free: x in one piece."""
        out = self.empty(x.shape, x.dtype)
        out[...] = x
        return out

    def taken(self, table: NDArray[Any], places: NDArray[Any]) -> NDArray[Any]:
        """Changes what is free: table[places], in one piece; places are in one piece too, and never out of bounds."""
        out = self.empty(places.shape, table.dtype)
        flat_places, flat_out = places.reshape(-1), out.reshape(-1)
        # NumPy looks up by machine words only: some at a time, so that those stay in the cache.
        words = self.empty((min(_AT_ONCE, places.size),), np.intp)
        for start in range(0, places.size, _AT_ONCE):
            some = flat_places[start : start + _AT_ONCE]
            here = words[: len(some)]
            here[...] = some
            np.take(table, here, mode="clip", out=flat_out[start : start + len(some)])
        return out
