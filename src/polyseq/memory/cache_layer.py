"""What one layer keeps between calls: what a model says, a memory makes cells for, and a backend makes room for.

The memory's kind follows from these alone. A layer that keeps nothing is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

PartName = str  # of a part of a memory; "kv", "kv_swa" and "rs" are what graphs read


@dataclass(frozen=True, slots=True)
class KvLayer:
    """K and V of every token, or with `n_swa` of the last tokens only: sizes of one cell."""

    n_head_kv: int
    n_embd_head_k: int
    n_embd_head_v: int
    n_swa: int = 0  # a row sees positions less than n_swa before its own; 0: all before it

    rotates = True  # K can be owed a rotation

    @property
    def part(self) -> PartName:
        """Where its cells are."""
        return "kv_swa" if self.n_swa else "kv"

    @property
    def n_values(self) -> int:
        """Numbers in one cell."""
        return self.n_head_kv * (self.n_embd_head_k + self.n_embd_head_v)


@dataclass(frozen=True, slots=True)
class RsLayer:
    """A state that each token moves on: named f32 arrays of one state cell, as ("conv", (d_inner, d_conv - 1))."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]

    rotates = False
    part: ClassVar[PartName] = "rs"

    @property
    def n_values(self) -> int:
        """Numbers in one cell."""
        return sum(int(np.prod(shape)) for _, shape in self.tensors)


CacheLayer = KvLayer | RsLayer
