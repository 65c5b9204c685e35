"""K and V of one part of a memory, in blocks of 16 cells, and where each cell is.

Enters: views of the memory, cell by cell reads and writes. Leaves: addresses for kernels (kv/layout.py has the picture)
and the words that plan attention. With a stream per sequence a cell's place follows from its number; in a unified
cache a block table keeps sequences apart (placing.py). Memory is taken as blocks are used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.compiler.compile import function
from polyseq.backends.cpu.compiler.features import Features, InstructionSet
from polyseq.backends.cpu.kv.block_table import BlockTable
from polyseq.backends.cpu.kv.layout import BUNDLE, BlockLayout, HeadLayout, KvType, block_layout
from polyseq.backends.cpu.kv.rows import CellRows, CellWords, cell_words
from polyseq.backends.cpu.words.aligned import address, zeros
from polyseq.backends.cpu.words.tile_words import BLOCK, PLAN_WORDS, P
from polyseq.graph import CachePart, KvLayer, RsLayer
from polyseq.lazy import lazy

I32 = NDArray[np.int32]
_C_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_int64)
_PLAIN = Features(InstructionSet.GENERIC)  # planning kernels name no instructions: the same code for all sets


def n_blocks(part: CachePart) -> int:
    """Pure. Blocks that hold the cells of one stream."""
    return -(-part.n_cells // BLOCK)


class KvPart:
    """Cell tensors of one part. `words` are given to planning kernels; they name the arrays kept here."""

    def __init__(self, part: CachePart, kind: KvType, features: Features) -> None:
        self.part, self.kind, self.features = part, kind, features
        self.layout: BlockLayout = block_layout(part, kind)
        self.stream_blocks = n_blocks(part)
        self.unified = part.n_stream == 1
        self.n_blocks = part.n_stream * self.stream_blocks
        self.words: NDArray[np.int64] = np.zeros(PLAN_WORDS, np.int64)
        self.table: BlockTable | None = None
        if self.unified:
            self.table = BlockTable(part.n_cells, self.words, keeps=any(_window(a) for a in part.layers.values()))
            self.n_blocks = self.table.n_blocks
        n_bundles = -(-self.n_blocks // BUNDLE)
        self.pool: NDArray[np.uint8] = zeros((n_bundles, self.layout.bundle_bytes), np.uint8, align=4096)
        self.touched: NDArray[np.uint8] = np.zeros(self.n_blocks, np.uint8)
        self._words_at = address(self.words)
        self._set(P.TOUCHED, self.touched)
        self.words[P.STREAM_BLOCKS] = 0 if self.unified else self.stream_blocks

    @property
    def n_bytes(self) -> int:
        """Bytes that all cells take once used."""
        return self.part.n_stream * self.stream_blocks * self.layout.n_bytes

    @lazy
    def cell_words(self) -> CellWords:
        """Pure. See `cell_words`."""
        return cell_words(self.layout)

    def call(self, kernel: str) -> None:
        """Changes what the kernel changes: runs it on `words`."""
        _planning(kernel)(self._words_at)

    def places(self, stream: int, cells: NDArray[np.integer[Any]]) -> I32:
        """Pure. [n] i32 where these cells are, -1: nowhere, so nothing was ever written."""
        if self.table is None:
            return (stream * self.stream_blocks * BLOCK + cells).astype(np.int32)
        found: I32 = self.table.place[cells]
        return found

    def copy_stream(self, src: int, dst: int) -> None:
        """Changes stream `dst`: it becomes a copy of stream `src`, all layers."""
        if src == dst:
            return
        n = self.stream_blocks
        used = np.flatnonzero(self.touched[src * n : (src + 1) * n] | self.touched[dst * n : (dst + 1) * n])
        for il, head in self.layout.heads.items():
            for rows in self._cell_rows(il, head).values():
                rows.copy_blocks(src * n + used, dst * n + used)
        self.touched[dst * n + used] = 1

    def read(self, stream: int, cells: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
        """Pure. "{il}.k" and "{il}.v": rows of these cells, see `CellRows`; a cell never written gives zeros.

        "place" i32 says which cells lie in one block: attention adds block by block, so its last bits depend on that.
        """
        places = self.places(stream, cells)
        known, rows = places >= 0, {"place": places}
        for il, head in self.layout.heads.items():
            for name, codes in self._cell_rows(il, head).items():
                row = codes.get(places[known])
                rows[f"{il}.{name}"] = np.zeros((len(cells), *row.shape[1:]), row.dtype)
                rows[f"{il}.{name}"][known] = row
        return rows

    def write(self, stream: int, cells: NDArray[np.intp], rows: Mapping[str, NDArray[Any]]) -> None:
        """Changes these cells to what `read` gave of as many."""
        places = self.places(stream, cells) if self.table is None else self.table.take(cells, rows["place"])
        self.touched[places // BLOCK] = 1
        for il, head in self.layout.heads.items():
            for name, codes in self._cell_rows(il, head).items():
                codes.put(places, rows[f"{il}.{name}"])

    def keys(self, il: int) -> CellRows:
        """Pure. K of a layer as rows of cells."""
        return self._cell_rows(il, self.layout.heads[il])["k"]

    def _cell_rows(self, il: int, head: HeadLayout) -> dict[str, CellRows]:
        k, v = self.layout.k_offset[il], self.layout.v_offset[il]
        return {"k": CellRows(self.pool, head, k, keys=True), "v": CellRows(self.pool, head, v, keys=False)}

    def _set(self, word: P, column: NDArray[Any]) -> None:
        self.words[word] = address(column)


def _window(layer: KvLayer | RsLayer) -> bool:
    return isinstance(layer, KvLayer) and layer.n_swa > 0


@cache
def _planning(kernel: str) -> Callable[[int], None]:
    """Changes the process, the first time: a kernel that plans, as a function of the words' address."""
    return _C_FUNCTION(function(kernel, _PLAIN))
