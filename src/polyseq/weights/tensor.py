"""What is known of one stored tensor before its data is read.

Enters: a name, dims and a GGML type as a file's header states them. Leaves: `TensorInfo`, shared by every
source of weights, and `dequantised`, the one place where stored bytes become float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from polyseq.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `shape` in NumPy order (GGUF's dims reversed), so a matrix is [n_out, n_in]."""

    name: str
    shape: tuple[int, ...]  # 1 to 4 dims, each >= 1
    qtype: GGMLQuantizationType
    offset: int  # bytes from the start of the file; 0 for tensors that are in no file
    n_bytes: int

    @property
    def n_elements(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def n_rows(self) -> int:
        """Number of rows; a row (the last dim) is what quantisation blocks never cross."""
        return math.prod(self.shape[:-1])


def dequantised(info: TensorInfo, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Pure. `rows` [n_rows, bytes per row] u8 as float32 of `info.shape`; F32 is a view when aligned.

    Raises UnsupportedModel for a type that `gguf.quants` cannot dequantise.
    """
    try:
        # A hostile block scale may be inf or NaN; the values say so, a warning adds nothing.
        with np.errstate(all="ignore"):
            values = dequantize(rows, info.qtype)
    except NotImplementedError as error:
        raise UnsupportedModel(
            f"tensor {info.name!r} is stored as {info.qtype.name}, which cannot be turned into float32"
        ) from error
    aligned: NDArray[np.float32] = np.require(values, dtype=np.float32, requirements=["A", "C"])
    return aligned.reshape(info.shape)
