"""Sequence operations on the cells of one stream: remove, keep, share, shift, divide.

Ranges are `[p0, p1)`, -1 = open. Each changes the cells, then their counts and position ranges; the head moves as
llama.cpp's does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import SequenceError
from polyseq.memory.cells import FREE, Cells


def check_seq_ids(n_seq_max: int, *seq_ids: int) -> None:
    """Pure. Raises `SequenceError` for an id that no sequence can have."""
    for seq_id in seq_ids:
        if not hasattr(seq_id, "__index__"):
            raise SequenceError(f"a sequence is named by a whole number, not {seq_id!r}")
        if not 0 <= seq_id < n_seq_max:
            raise SequenceError(f"sequence {seq_id} is outside [0, {n_seq_max}) (n_seq_max)")


def in_range(pos: NDArray[np.int32], p0: int, p1: int) -> NDArray[np.bool_]:
    """Pure. Which positions lie in `[p0, p1)`; free cells never do."""
    inside: NDArray[np.bool_] = (pos >= max(p0, 0)) & (pos != FREE)
    if p1 >= 0:
        inside &= pos < p1
    return inside


def remove(cells: Cells, seq_id: int, p0: int, p1: int) -> None:
    """Changes the cells: the sequence leaves those of the range; what nobody holds becomes free."""
    stream, held = cells.held_by(seq_id)
    leaves = held & in_range(cells.pos[stream], p0, p1)
    if not leaves.any():
        return
    emptied = cells.leave(seq_id, leaves)
    if emptied.any():
        cells.head[stream] = min(int(cells.head[stream]), int(np.argmax(emptied)))
    cells.refresh_ranges([seq_id])


def remove_any(cells: Cells, stream: int, p0: int, p1: int) -> None:
    """Changes the cells: those of the range become free, whoever holds them."""
    leaves = in_range(cells.pos[stream], p0, p1)
    seq_ids = cells.seq_ids_in(stream, leaves)
    _free_and_lower_head(cells, stream, leaves)
    cells.refresh_ranges(seq_ids)


def keep(cells: Cells, seq_id: int) -> None:
    """Changes the cells: of its stream, only those of the sequence stay, and only it holds them."""
    stream, held = cells.held_by(seq_id)
    used = cells.pos[stream] != FREE
    seq_ids = cells.seq_ids_in(stream, used)
    if cells.n_stream == 1:
        cells.seqs[0, held] = 0
        cells.seqs[0, held, seq_id >> 6] = np.uint64(1 << (seq_id & 63))
    _free_and_lower_head(cells, stream, used & ~held)
    cells.refresh_ranges(seq_ids)


def share(cells: Cells, src: int, dst: int, p0: int, p1: int) -> None:
    """Changes the cells: `dst` joins those of `src` in the range; only for one stream."""
    _, held = cells.held_by(src)
    joins = held & in_range(cells.pos[0], p0, p1)
    cells.seqs[0, joins, dst >> 6] |= np.uint64(1 << (dst & 63))
    cells.refresh_ranges([dst])


def shift(cells: Cells, seq_id: int, p0: int, p1: int, delta: int) -> None:
    """Changes the cells: positions of the range move by delta, and K is owed the rotation; below 0 a cell is freed.

    Shared cells move for all that share them.
    """
    stream, held = cells.held_by(seq_id)
    moves = held & in_range(cells.pos[stream], p0, p1)
    seq_ids = cells.seq_ids_in(stream, moves)
    cells.pos[stream, moves] += delta
    cells.shift[stream, moves] += delta
    cells.has_shift[stream] |= moves.any()
    gone = moves & (cells.pos[stream] < 0)
    cells.free(stream, gone)
    cells.head[stream] = np.argmax(gone) if gone.any() else 0
    cells.refresh_ranges(seq_ids)


def divide(cells: Cells, seq_id: int, p0: int, p1: int, d: int) -> None:
    """Changes the cells: positions of the range are divided by d, and K is owed the rotation."""
    stream, held = cells.held_by(seq_id)
    moves = held & in_range(cells.pos[stream], p0, p1)
    before = cells.pos[stream, moves]
    cells.pos[stream, moves] = before // d
    cells.shift[stream, moves] += before // d - before
    cells.has_shift[stream] |= moves.any()
    cells.refresh_ranges(cells.seq_ids_in(stream, moves))


def replace_stream(cells: Cells, src: int, dst: int) -> None:
    """Changes the cells: stream `dst` becomes a copy of stream `src`, head and pending shifts included."""
    for column in (cells.pos, cells.shift, cells.seqs, cells.head, cells.used, cells.end):
        column[dst] = column[src]
    cells.has_shift[dst] = cells.shift[dst].any()
    cells.refresh_ranges([dst])


def _free_and_lower_head(cells: Cells, stream: int, which: NDArray[np.bool_]) -> None:
    if which.any():
        cells.free(stream, which)
        cells.head[stream] = min(int(cells.head[stream]), int(np.argmax(which)))
