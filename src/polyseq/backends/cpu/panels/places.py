"""Where the panels of a model's matrices lie: one matrix after another in one stretch of memory.

For a large array NumPy asks the system for huge pages; most matrices are too small for that by themselves, and a core
that walks through weights would come to a new page of 4 KB every 300 ns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.words.aligned import LINE_BYTES, zeros

U8 = NDArray[np.uint8]


class Places:
    """One model's. Memory is taken page by page, when it is written to."""

    def __init__(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        self._shapes = shapes
        self._free: dict[str, U8] = {}
        n_bytes = {name: -(-math.prod(shape) // LINE_BYTES) * LINE_BYTES for name, shape in shapes.items()}
        stretch = zeros((sum(n_bytes.values()),), np.uint8)
        start = 0
        for name, shape in shapes.items():
            self._free[name] = stretch[start : start + math.prod(shape)].reshape(shape)
            start += n_bytes[name]

    def take(self, name: str) -> U8:
        """Changes what is free: the matrix's place [panels, bytes of each]; whoever asks again gets new memory."""
        place = self._free.pop(name, None)
        return zeros(self._shapes[name], np.uint8) if place is None else place
