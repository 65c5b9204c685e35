"""Weights held in memory: tiny random models for tests, weights made by a program.

Enters: arrays by GGUF tensor name. Leaves: the `Weights` protocol over float32 copies of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import ArrayLike, NDArray

from polyseq.errors import InvalidModelFile
from polyseq.weights.tensor import TensorInfo


class ArrayWeights:
    """`Weights` over arrays, all stored as F32; shapes in NumPy order ([n_out, n_in])."""

    def __init__(self, arrays: Mapping[str, ArrayLike]) -> None:
        self._arrays: dict[str, NDArray[np.float32]] = {}
        for name, array in arrays.items():
            # np.array copies, so freezing it leaves the caller's array as it was.
            values = np.array(array, dtype=np.float32, order="C")
            if not 1 <= values.ndim <= 4 or values.size == 0:
                raise InvalidModelFile(f"tensor {name!r} has shape {values.shape}; 1 to 4 dims of at least 1")
            values.setflags(write=False)
            self._arrays[name] = values

    def names(self) -> tuple[str, ...]:
        """Pure. All tensor names, in the order given."""
        return tuple(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def info(self, name: str) -> TensorInfo:
        """Pure. Shape and size; the type is F32."""
        values = self.f32(name)
        return TensorInfo(name, values.shape, GGMLQuantizationType.F32, 0, values.nbytes)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Pure. The float32 bytes: [n_rows, 4 * n_cols] u8, read-only."""
        values = self.f32(name)
        return values.reshape(-1, values.shape[-1]).view(np.uint8)

    def f32(self, name: str) -> NDArray[np.float32]:
        """Pure. The array itself, read-only."""
        if name not in self._arrays:
            raise InvalidModelFile(f"the weights hold no tensor {name!r}")
        return self._arrays[name]
