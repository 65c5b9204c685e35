"""The block table of a unified cache as arrays, and the way back to an earlier state of it.

Enters: how many cells there are, and the words that planning kernels are given. Leaves: the words' addresses of the
table's columns, which placing.py fills. A window's cells are overwritten while what they held may be wanted again: so
what a marked table holds is kept in its places until the next mark, and going back moves no K and no V.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.words.aligned import address
from polyseq.backends.cpu.words.tile_words import BLOCK, P

I32 = NDArray[np.int32]
# Blocks beyond what the cells fill: sequences leave blocks half full. Not touched, they take no memory.
_SPARE = 256


@dataclass(frozen=True, slots=True)
class BlockMark:
    """A table at one moment; good until the next one."""

    place: I32
    holds: I32
    n_held: I32
    free: I32  # the stack of free blocks, as high as it was
    n_placed: int


class BlockTable:
    """`place` [n_cells] i32: where each cell is, -1: nowhere. `keeps`: it is marked, so it has room for two states."""

    def __init__(self, n_cells: int, words: NDArray[np.int64], *, keeps: bool) -> None:
        n = -(-n_cells // BLOCK)
        self.n_blocks = (2 if keeps else 1) * n + n // 4 + _SPARE
        self.keeps, self._words = keeps, words
        n_places = self.n_blocks * BLOCK
        self.place: I32 = np.full(n_cells, -1, np.int32)
        self.holds: I32 = np.full(n_places + 1, -1, np.int32)  # kernels look one ahead
        self._n_held: I32 = np.zeros(self.n_blocks, np.int32)
        # The top of the stack is its end: block 0 first.
        self._free: I32 = np.arange(self.n_blocks, dtype=np.int32)[::-1].copy()
        self._kept: NDArray[np.bool_] = np.zeros(n_places + 1, np.bool_)
        self._n_kept: I32 = np.zeros(self.n_blocks, np.int32)
        self._columns: dict[P, NDArray[Any]] = {
            P.PLACE: self.place,
            P.HOLDS: self.holds,
            P.N_HELD: self._n_held,
            P.FREE: self._free,
            P.KEPT: self._kept,
            P.N_KEPT: self._n_kept,
            P.PLACE_POS: np.zeros(n_places, np.int32),
            P.BLOCK_KEY: np.zeros(self.n_blocks, np.int32),
            P.SEEN: np.zeros(self.n_blocks, np.int32),
        }
        for word, column in self._columns.items():
            words[word] = address(column)
        words[P.N_FREE] = self.n_blocks

    def mark(self) -> BlockMark:
        """Changes what is kept: all that is held now, and nothing else. `undo` comes back here."""
        words = self._words
        self._push(np.flatnonzero((self._n_kept > 0) & (self._n_held == 0)))
        np.greater_equal(self.holds, 0, out=self._kept)
        self._n_kept[:] = self._n_held
        free = self._free[: int(words[P.N_FREE])].copy()
        return BlockMark(self.place.copy(), self.holds.copy(), self._n_held.copy(), free, int(words[P.N_PLACED]))

    def undo(self, mark: BlockMark) -> None:
        """Changes the table back to its last mark; what it held then is still there."""
        self.place[:], self.holds[:], self._n_held[:] = mark.place, mark.holds, mark.n_held
        self._free[: len(mark.free)] = mark.free
        self._words[P.N_FREE], self._words[P.N_PLACED] = len(mark.free), mark.n_placed

    def take(self, cells: NDArray[np.integer[Any]], like: I32) -> I32:
        """Changes the table: these cells, written without a view, get places [n] i32 like those they were read from.

        What lay in one block does so again, in the same order. Where that cannot be they take any free place.
        """
        if np.array_equal(self.place[cells], like):
            return like
        self._release(cells)
        n_free = int(self._words[P.N_FREE])
        blocks, block = np.unique(like // BLOCK, return_inverse=True)
        if like.min(initial=0) >= 0 and len(np.unique(like)) == len(like) and len(blocks) <= n_free:
            n_free -= len(blocks)
            self._words[P.N_FREE] = n_free
            places = (self._free[n_free : n_free + len(blocks)][::-1][block] * BLOCK + like % BLOCK).astype(np.int32)
        else:
            places = np.flatnonzero((self.holds[:-1] < 0) & ~self._kept[:-1])[: len(cells)].astype(np.int32)
            taken = np.bincount(places // BLOCK, minlength=self.n_blocks) > 0
            left = self._free[:n_free][~taken[self._free[:n_free]]]
            self._free[: len(left)] = left
            self._words[P.N_FREE] = len(left)
        self.place[cells], self.holds[places] = places, cells
        self._n_held += np.bincount(places // BLOCK, minlength=self.n_blocks).astype(np.int32)
        self._words[P.N_PLACED] = max(int(self._words[P.N_PLACED]), int(cells.max(initial=-1)) + 1)
        return places

    def _release(self, cells: NDArray[np.integer[Any]]) -> None:
        """Changes the table: these cells are nowhere."""
        places = self.place[cells]
        places = places[places >= 0]
        self.place[cells], self.holds[places] = -1, -1
        left = np.bincount(places // BLOCK, minlength=self.n_blocks).astype(np.int32)
        self._n_held -= left
        self._push(np.flatnonzero((left > 0) & (self._n_held == 0) & (self._n_kept == 0)))

    def _push(self, blocks: NDArray[np.intp]) -> None:
        n_free = int(self._words[P.N_FREE])
        self._free[n_free : n_free + len(blocks)] = blocks
        self._words[P.N_FREE] = n_free + len(blocks)

    def check(self) -> None:
        """Pure. Asserts the invariants; for tests."""
        n_free = int(self._words[P.N_FREE])
        cells = np.flatnonzero(self.place >= 0)
        assert (self.holds[self.place[cells]] == cells).all()
        assert (self.holds >= 0).sum() == len(cells)
        held = (self.holds[:-1] >= 0).reshape(-1, BLOCK).sum(axis=1)
        assert (self._n_held == held).all()
        assert (np.sort(self._free[:n_free]) == np.flatnonzero((held == 0) & (self._n_kept == 0))).all()
        assert not len(cells) or cells[-1] < self._words[P.N_PLACED]
