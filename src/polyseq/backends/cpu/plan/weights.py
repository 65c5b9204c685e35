"""Weights as kernels read them, each packed when a plan first needs it; the file's own pages are let go.

Enters: a model's `Weights`. Leaves: panels of matrices, aligned float32 vectors, and for ops that the reference backend
computes its dequantised arrays. A tensor that is both embedding table and head is packed once. Records hold addresses
of what is kept here, so it is never replaced: where several threads pack one tensor, the first to end is kept.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.panels.panel_kind import KIND_OF
from polyseq.backends.cpu.panels.panels import PACKING_THREADS, Panels, pack, panels_of
from polyseq.backends.cpu.panels.places import Places
from polyseq.backends.cpu.rows.turns import Turns
from polyseq.backends.cpu.words.aligned import zeros
from polyseq.graph.ops import RopeParams
from polyseq.weights.weights import Weights

_LINE_FLOATS = 16


class PackedWeights:
    """One model's weights, shared by all its contexts."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        infos = ((name, weights.info(name)) for name in weights.names())
        self._places = Places({name: panels_of(info) for name, info in infos if len(info.shape) > 1})
        self._panels: dict[str, Panels] = {}
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self._turns: dict[tuple[RopeParams, str | None], Turns] = {}
        self._arrays: dict[str, NDArray[np.float32]] = {}

    @property
    def n_bytes_packed(self) -> int:
        """Pure. What all tensors take once packed: matrices as panels, vectors as f32."""
        infos = [self._weights.info(name) for name in self._weights.names()]
        panels = [panels_of(info) for info in infos if len(info.shape) > 1]
        vectors = [-(-info.n_elements // _LINE_FLOATS) * _LINE_FLOATS for info in infos if len(info.shape) == 1]
        return sum(n * n_bytes for n, n_bytes in panels) + 4 * sum(vectors)

    def reads_records(self, name: str) -> bool:
        """Pure. Whether the matrix's kernels take 8-bit rows (activation.py)."""
        return self._weights.info(name).qtype in KIND_OF

    def pack_all(self, names: Iterable[str]) -> None:
        """Changes what is packed: these matrices in panels. Most make a single slice, so a thread packs a whole one."""
        missing = [name for name in names if name not in self._panels]
        if missing:
            with ThreadPoolExecutor(PACKING_THREADS) as pool:
                for _ in pool.map(self.panels, missing):
                    pass

    def panels(self, name: str) -> Panels:
        """Changes what is packed, the first time: the matrix in panels. Several threads may ask for different ones."""
        if name not in self._panels:
            rows = self._weights.raw(name)
            self._panels.setdefault(name, pack(self._weights.info(name), rows, out=self._places.take(name)))
            _let_go(rows)
        return self._panels[name]

    def vector(self, name: str) -> NDArray[np.float32]:
        """Changes what is packed, the first time: [d] f32, followed by zeros up to a whole line."""
        if name not in self._vectors:
            values = self._weights.f32(name).ravel()
            padded = zeros((-(-len(values) // _LINE_FLOATS) * _LINE_FLOATS,), np.float32)
            padded[: len(values)] = values
            self._vectors.setdefault(name, padded)
        return self._vectors[name]

    def turns(self, params: RopeParams, factors: str | None) -> Turns:
        """Changes what is kept, the first time: the turns of all positions, with these frequency factors."""
        if (params, factors) not in self._turns:
            made = Turns(params, None if factors is None else self.array(factors))
            self._turns.setdefault((params, factors), made)
        return self._turns[params, factors]

    def array(self, name: str) -> NDArray[np.float32]:
        """Changes what is kept, the first time: the values as the reference backend reads them."""
        if name not in self._arrays:
            self._arrays.setdefault(name, np.ascontiguousarray(self._weights.f32(name)))
        return self._arrays[name]


def _let_go(rows: NDArray[np.uint8]) -> None:
    """Changes nothing that can be read: tells the system that these pages of a mapped file are not needed now."""
    base: Any = rows
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = rows.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    n_bytes = (start + rows.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if n_bytes > 0:
        base.madvise(mmap.MADV_DONTNEED, first, n_bytes)
