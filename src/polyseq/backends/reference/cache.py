"""The reference backend's cache tensors: plain float32, a cell is a place in an array.

Enters: rows of K and V through `CacheWrite`, states through recurrent ops. Leaves: what `Attention` and they read.
`memory` decides which cell is whose.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.kept_rows import KeptRows
from polyseq.backends.options import RunOptions
from polyseq.graph import CachePart, KvLayer
from polyseq.memory.cache_part import PartName

F32 = NDArray[np.float32]


class ReferenceCache:
    """By il: `k`, `v` [n_stream, n_head_kv, n_cells, head_dim] f32, `states` by name [n_cells, ...] f32.

    Heads come before cells, so that one head's cells are one matrix for BLAS.
    """

    def __init__(self, parts: tuple[CachePart, ...]) -> None:
        self.k: dict[int, F32] = {}
        self.v: dict[int, F32] = {}
        self.states: dict[int, dict[str, F32]] = {}
        self._layers: dict[PartName, tuple[int, ...]] = {}
        for part in parts:
            self._layers[part.name] = tuple(part.layers)
            for il, layer in part.layers.items():
                # np.zeros takes pages only as cells are written.
                if isinstance(layer, KvLayer):
                    shape = part.n_stream, layer.n_head_kv, part.n_cells
                    self.k[il] = np.zeros((*shape, layer.n_embd_head_k), np.float32)
                    self.v[il] = np.zeros((*shape, layer.n_embd_head_v), np.float32)
                else:
                    self.states[il] = {
                        name: np.zeros((part.n_cells, *shape), np.float32) for name, shape in layer.tensors
                    }

    @property
    def options(self) -> RunOptions:
        """Pure. There is one way."""
        return RunOptions(None, "f32")

    @property
    def n_bytes(self) -> int:
        """Bytes that all cells take once used."""
        states = [a for tensors in self.states.values() for a in tensors.values()]
        return sum(a.nbytes for a in (*self.k.values(), *self.v.values(), *states))

    def copy_stream(self, part: PartName, src: int, dst: int) -> None:
        """Changes stream `dst` of a part with streams: it becomes a copy of stream `src`, all layers."""
        for il in self._layers[part]:
            self.k[il][dst] = self.k[il][src]
            self.v[il][dst] = self.v[il][src]

    def read(self, part: PartName, stream: int, cells: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
        """Pure. See `CacheTensors.read`: K [n, n_head_kv, head_k], V [n, n_head_kv, head_v], states [n, ...]."""
        return {key: place[cells] for key, place in self._places(part, stream).items()}

    def write(self, part: PartName, stream: int, cells: NDArray[np.intp], rows: Mapping[str, NDArray[Any]]) -> None:
        """Changes these cells. See `CacheTensors.write`."""
        for key, place in self._places(part, stream).items():
            place[cells] = rows[key]

    def keeping(self) -> KeptRows:
        """Pure. See `CacheTensors.keeping`."""
        return KeptRows(self)

    def _places(self, part: PartName, stream: int) -> dict[str, F32]:
        """Views of one stream with cells as the first axis."""
        places: dict[str, F32] = {}
        for il in self._layers[part]:
            if il in self.states:
                places |= {f"{il}.{name}": a for name, a in self.states[il].items()}
            else:
                places[f"{il}.k"] = self.k[il][stream].swapaxes(0, 1)
                places[f"{il}.v"] = self.v[il][stream].swapaxes(0, 1)
        return places
