"""Fewer cells to look at: what lies behind free cells moves into them, so that a stream's cells are its first ones.

Attention reads cells up to the last used one; after sequences went, that may be far behind what is held. It never
makes room: cells of a slot need not be neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.memory.cache_part import PartName
from polyseq.memory.cells import FREE, Cells


@dataclass(frozen=True, slots=True)
class Move:
    """Cells of one stream that take the place of free ones."""

    part: PartName
    stream: int
    src: NDArray[np.intp]  # [n]
    dst: NDArray[np.intp]  # [n] free


def moves(cells: Cells, part: PartName) -> tuple[Move, ...]:
    """Pure. The fewest moves that leave no free cell before a used one; positions keep their order."""
    found = []
    for stream in np.flatnonzero(cells.end > cells.used).tolist():
        n = int(cells.used[stream])
        used = cells.pos[stream] != FREE
        found.append(Move(part, stream, n + np.flatnonzero(used[n:]), np.flatnonzero(~used[:n])))
    return tuple(found)


def moved(cells: Cells, move: Move) -> None:
    """Changes the cells: those of the move are where it says; the next search starts behind the last."""
    for column, free in ((cells.pos, FREE), (cells.shift, 0), (cells.seqs, 0)):
        column[move.stream, move.dst] = column[move.stream, move.src]
        column[move.stream, move.src] = free
    cells.recount(move.stream)
    cells.head[move.stream] = cells.end[move.stream]
