"""The door through which models and backends see weights.

Enters: a tensor's GGUF name (`blk.0.attn_q.weight`). Leaves: its `TensorInfo`, its bytes as stored or its
values as float32. Implemented by `GgufFile` (a mapped file) and `ArrayWeights` (arrays in memory).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from polyseq.weights.tensor import TensorInfo


class Weights(Protocol):
    """Named tensors. Every method raises InvalidModelFile for a name that is not there."""

    def names(self) -> tuple[str, ...]:
        """Pure. All tensor names, in stored order."""
        ...

    def __contains__(self, name: object) -> bool:
        """Pure. Whether a tensor of that name is there."""
        ...

    def info(self, name: str) -> TensorInfo:
        """Pure. Shape, type and size of one tensor."""
        ...

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Pure. The bytes as stored, read-only: [n_rows, bytes per row] u8."""
        ...

    def f32(self, name: str) -> NDArray[np.float32]:
        """Pure. The values as float32 of `info(name).shape`; read-only where no copy was needed.

        Raises UnsupportedModel when the stored type cannot be dequantised.
        """
        ...
