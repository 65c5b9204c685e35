"""The reference backend's cache tensors: plain float32, a cell is a place in an array.

Enters: rows of K and V through `CacheWrite`. Leaves: what `Attention` reads. `memory` decides which cell is whose.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyseq.graph import KvLayer


class ReferenceKv:
    """K and V per layer: `k[il]`, `v[il]` [n_stream, n_head_kv, n_cells, head_dim] f32.

    Heads come before cells, so that one head's cells are one matrix for BLAS.
    """

    def __init__(self, layers: tuple[KvLayer, ...], *, n_stream: int, n_cells: int) -> None:
        # np.zeros takes pages only as cells are written.
        self.k: tuple[NDArray[np.float32], ...] = tuple(
            np.zeros((n_stream, a.n_head_kv, n_cells, a.n_embd_head_k), np.float32) for a in layers
        )
        self.v: tuple[NDArray[np.float32], ...] = tuple(
            np.zeros((n_stream, a.n_head_kv, n_cells, a.n_embd_head_v), np.float32) for a in layers
        )

    @property
    def n_bytes(self) -> int:
        """Bytes that all cells take once used."""
        return sum(a.nbytes for a in self.k + self.v)

    def copy_stream(self, src: int, dst: int) -> None:
        """Changes stream `dst`: it becomes a copy of stream `src`, all layers."""
        for a in self.k + self.v:
            a[dst] = a[src]

    def read(self, il: int, stream: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Pure. Copies of K [n_cells, n_head_kv, head_k] and V [n_cells, n_head_kv, head_v], f32."""
        k, v = (np.swapaxes(a[il][stream], 0, 1).copy() for a in (self.k, self.v))
        return k, v
