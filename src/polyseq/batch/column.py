"""A growable array: rows are added many at once, at a constant cost per row.

Part of step 1; Batch keeps one for each thing a row carries.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=np.generic)


class Column(Generic[T]):
    """Values of one dtype, each a scalar (`width=None`) or a row of `width` values."""

    __slots__ = ("_data", "_n")

    def __init__(self, dtype: type[T], *, width: int | None = None, capacity: int = 64) -> None:
        shape = (capacity,) if width is None else (capacity, width)
        self._data: NDArray[T] = np.empty(shape, dtype)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    @property
    def values(self) -> NDArray[T]:
        """The rows so far: a view, valid until the next append."""
        return self._data[: self._n]

    def extend(self, n: int, values: Any) -> None:
        """Changes the column: adds `n` rows from an array of `n` rows, or from one value for all of them."""
        end = self._n + n
        if end > len(self._data):
            self._grow(end)
        self._data[self._n : end] = values
        self._n = end

    def clear(self) -> None:
        """Changes the column: no rows; the room stays."""
        self._n = 0

    def _grow(self, n: int) -> None:
        data = np.empty((max(n, 2 * len(self._data)), *self._data.shape[1:]), self._data.dtype)
        data[: self._n] = self.values
        self._data = data
