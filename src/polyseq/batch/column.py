"""A growable array: rows are added many at once, at a constant cost per row.

Part of step 1; Batch keeps one for each thing a row carries. While all rows hold one and the same scalar, only that
scalar is kept, so that what never differs costs nothing and can be asked for.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=np.generic)


class Column(Generic[T]):
    """Values of one dtype, each a scalar (`width=None`) or a row of `width` values."""

    __slots__ = ("_constant", "_data", "_n", "_row")

    def __init__(self, dtype: type[T], *, width: int | None = None) -> None:
        self._row = () if width is None else (width,)
        self._data: NDArray[T] = np.empty((0, *self._row), dtype)
        self._n = 0
        self._constant: int | None = None  # all rows hold it, and `_data` does not

    def __len__(self) -> int:
        return self._n

    @property
    def values(self) -> NDArray[T]:
        """The rows so far: a view, valid until the next append."""
        if self._constant is not None:
            return np.full((self._n, *self._row), self._constant, self._data.dtype)
        return self._data[: self._n]

    @property
    def constant(self) -> int | None:
        """The scalar that every row was given; None where rows came in as arrays, or differ."""
        return self._constant

    def extend(self, n: int, values: Any) -> None:
        """Changes the column: adds `n` rows from an array of `n` rows, or from one int or bool for all of them."""
        end = self._n + n
        if isinstance(values, int) and (self._n == 0 or values == self._constant):
            self._constant = int(values)
            self._n = end
            return
        if end > len(self._data):
            self._grow(end)
        if self._constant is not None:
            self._data[: self._n] = self._constant
            self._constant = None
        self._data[self._n : end] = values
        self._n = end

    def clear(self) -> None:
        """Changes the column: no rows; the room stays."""
        self._n = 0
        self._constant = None

    def _grow(self, n: int) -> None:
        old = self._data
        self._data = np.empty((max(n, 2 * len(old)), *self._row), old.dtype)
        if self._constant is None and self._n:
            self._data[: self._n] = old[: self._n]
