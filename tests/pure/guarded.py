"""Arrays between guard bytes: what a kernel writes beside its arrays shows.

Enters: modules whose `np` and `zeros` make arrays that kernels are given. Leaves: the same arrays, and `check`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike, NDArray

from polyseq.backends.cpu.kv import block_table
from polyseq.backends.cpu.kv import part as kv
from polyseq.backends.cpu.tiles import tiles
from polyseq.backends.cpu.words import aligned

GUARD = 4096  # bytes on either side: alignment stays
BYTE = 0xA5


class Guarded:
    """NumPy, but for what `zeros`, `empty` and `full` return."""

    def __init__(self) -> None:
        self._raw: list[tuple[NDArray[np.uint8], int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def zeros(self, shape: Any, dtype: DTypeLike = np.float64, *, align: int = 64) -> NDArray[Any]:
        n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        raw = np.full(n_bytes + 2 * GUARD + align, BYTE, np.uint8)
        start = GUARD + -(raw.ctypes.data + GUARD) % align
        raw[start : start + n_bytes] = 0
        self._raw.append((raw, start, start + n_bytes))
        return raw[start : start + n_bytes].view(dtype).reshape(shape)

    empty = zeros

    def full(self, shape: Any, value: Any, dtype: DTypeLike) -> NDArray[Any]:
        array = self.zeros(shape, dtype)
        array[...] = value
        return array

    def check(self) -> None:
        for raw, start, stop in self._raw:
            assert (raw[:start] == BYTE).all(), "written before an array"
            assert (raw[stop:] == BYTE).all(), "written behind an array"


def guarded(monkeypatch: pytest.MonkeyPatch) -> Guarded:
    """What plans, cells and threads of the cpu backend are given from now on lies between guards."""
    guards = Guarded()
    for module in (block_table, tiles):
        monkeypatch.setattr(module, "np", guards)
    for module in (aligned, kv):
        monkeypatch.setattr(module, "zeros", guards.zeros)
    monkeypatch.setattr(kv, "np", guards)
    return guards
