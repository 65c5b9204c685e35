"""What one context keeps on this backend: its cells, the tiles that attention reads them by, and its threads.

Enters: the parts of a memory. Leaves: `CacheTensors`. K and V lie as kernels read them (kv/part.py); states of
recurrent layers lie as the reference backend's do, whose functions compute them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.kv.kept import KeptCells
from polyseq.backends.cpu.kv.layout import KvType, block_layout
from polyseq.backends.cpu.kv.part import KvPart, n_blocks
from polyseq.backends.cpu.threads.pool import Pool
from polyseq.backends.cpu.tiles.tiles import Tiles
from polyseq.backends.cpu.words import aligned
from polyseq.backends.cpu.words.records import K
from polyseq.backends.kept_rows import KeptRows
from polyseq.backends.options import RunOptions
from polyseq.backends.reference.cache import ReferenceCache
from polyseq.graph import CachePart
from polyseq.lock import Lock
from polyseq.memory.cache_part import PartName
from polyseq.memory.view import KvView

_UNITS_PER_THREAD = 2  # pieces of attention, fewer of which would leave threads without work


def n_bytes_of(part: CachePart, kv_type: KvType) -> int:
    """Pure. What the cells of a part take, once all are used."""
    if not part.rotates:
        return 4 * part.n_values  # states are f32
    return part.n_stream * n_blocks(part) * block_layout(part, kv_type).n_bytes


class CpuCache:
    """`parts` and their `tiles` by name ("kv", "kv_swa"), `states` for the rest."""

    def __init__(self, parts: tuple[CachePart, ...], *, kv_type: KvType, pool: Pool) -> None:
        self.pool = pool
        self.options = RunOptions(pool.n_threads, kv_type)
        self.parts: Mapping[PartName, KvPart] = {
            part.name: KvPart(part, kv_type, pool.features) for part in parts if part.rotates
        }
        self.tiles: Mapping[PartName, Tiles] = {name: Tiles(part) for name, part in self.parts.items()}
        self.states = ReferenceCache(tuple(part for part in parts if not part.rotates))
        self.lock = Lock()  # held by a run: plans of this cache share buffers
        self._arena: NDArray[np.uint8] = aligned.zeros((0,), np.uint8)

    @property
    def n_bytes(self) -> int:
        """Bytes that all cells take once used."""
        return self.states.n_bytes + sum(part.n_bytes for part in self.parts.values())

    def part_of(self, il: int) -> PartName:
        """Pure. The part that holds K and V of layer il."""
        return next(name for name, part in self.parts.items() if il in part.part.layers)

    def plan_tiles(self, name: PartName, view: KvView, partial_floats: int, n_head_kv: int) -> Mapping[K, int]:
        """Changes the part's block table and tiles: what attention of this ubatch reads. Words for the kernels."""
        tiles = self.tiles[name]
        # A tile makes a unit per KV head.
        tiles.plan(view, n_split=-(-_UNITS_PER_THREAD * self.pool.n_threads // max(1, n_head_kv)))
        return tiles.step_words(partial_floats=partial_floats, n_head_kv=n_head_kv)

    def arena(self, n_bytes: int) -> NDArray[np.uint8]:
        """Changes the cache where it is larger than any before: memory for values within a run."""
        if len(self._arena) < n_bytes:
            self._arena = aligned.zeros((n_bytes,), np.uint8, align=4096)
        return self._arena

    def copy_stream(self, part: PartName, src: int, dst: int) -> None:
        """Changes stream `dst` of a part: it becomes a copy of stream `src`, all layers."""
        self.parts[part].copy_stream(src, dst)

    def read(self, part: PartName, stream: int, cells: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
        """Pure. See `CacheTensors.read`."""
        if part not in self.parts:
            return self.states.read(part, stream, cells)
        return self.parts[part].read(stream, cells)

    def write(self, part: PartName, stream: int, cells: NDArray[np.intp], rows: Mapping[str, NDArray[Any]]) -> None:
        """Changes these cells. See `CacheTensors.write`."""
        if part not in self.parts:
            self.states.write(part, stream, cells, rows)
        else:
            self.parts[part].write(stream, cells, rows)

    def keeping(self) -> KeptCells:
        """Changes marks of block tables. See `CacheTensors.keeping`."""
        return KeptCells(self.parts, KeptRows(self))
