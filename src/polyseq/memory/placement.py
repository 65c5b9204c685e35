"""Step 4: find room. Pure searches over cells; llama.cpp's `find_slot`, stream by stream.

A search starts at the stream's head, or at 0 when much lies free before it, and takes free cells in order, wrapping.
The cells need not be neighbours.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyseq.memory.cells import FREE, Cells
from polyseq.memory.slot import Slot
from polyseq.split.ubatch import Ubatch


def find_slot(cells: Cells, ubatch: Ubatch) -> Slot | int:
    """Pure. A free cell for every row, or the stream that has too few."""
    if cells.n_stream == 1:
        streams, offsets = np.zeros(1, np.intp), np.array([0, ubatch.n_tokens])
    else:
        streams = ubatch.first_seq[:: ubatch.n_seq_tokens].astype(np.intp)
        offsets = np.arange(ubatch.n_seqs + 1) * ubatch.n_seq_tokens
    n = int(offsets[1])
    found, fits = _at_head(cells, streams, n)
    for i in (~fits).nonzero()[0]:
        taken = _search(cells, int(streams[i]), n)
        if taken is None:
            return int(streams[i])
        found[i] = taken
    return Slot(streams, offsets, found.reshape(-1))


def _start(head: NDArray[np.int64], used: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Begin anew at 0 when far more than needed must lie free before the head."""
    return np.where(head > used + 2 * n, 0, head)


def _at_head(cells: Cells, streams: NDArray[np.intp], n: int) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """([n_streams, n] the n cells from each start, [n_streams] whether all of them exist and are free)."""
    start = _start(cells.head[streams], cells.used[streams], n)
    found = start[:, None] + np.arange(n)
    inside = np.minimum(found, cells.n_cells - 1)
    free = (cells.pos[streams[:, None], inside] == FREE).all(axis=1)
    return found, free & (start + n <= cells.n_cells)


def _search(cells: Cells, stream: int, n: int) -> NDArray[np.intp] | None:
    """The first n free cells from the start on, wrapping; None if there are fewer."""
    free = np.flatnonzero(cells.pos[stream] == FREE)
    if len(free) < n:
        return None
    start = int(_start(cells.head[stream], cells.used[stream], n))
    turn = int(np.searchsorted(free, start))
    return np.concatenate((free[turn:], free[:turn]))[:n]
