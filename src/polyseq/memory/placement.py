"""Step 4: find room. Pure searches over cells; llama.cpp's `find_slot`, stream by stream.

A search starts at the stream's head, or at 0 when much lies free before it, and takes usable cells in order, wrapping:
free ones, and with a window those that no query still to come can see. The cells need not be neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.memory.cells import Cells
from polyseq.memory.slot import Slot
from polyseq.split.ubatch import Ubatch


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of an ubatch by stream."""

    streams: NDArray[np.intp]  # [n_streams]
    row_stream: NDArray[np.intp]  # [n_tokens] index into streams
    counts: NDArray[np.intp]  # [n_streams] rows of each
    within: NDArray[np.intp]  # [n_tokens] which of its stream's rows each one is


def find_slot(cells: Cells, ubatch: Ubatch) -> Slot | int:
    """Pure. A usable cell for every row, or the stream that has too few."""
    rows = _rows(cells, ubatch)
    head, used = cells.head[rows.streams], cells.used[rows.streams]
    found = _start(head, used, rows.counts)[rows.row_stream] + rows.within
    inside = np.minimum(found, cells.n_cells - 1)
    misses = ~cells.usable(rows.streams[rows.row_stream], inside) | (found >= cells.n_cells)
    if misses.any():
        for i in np.unique(rows.row_stream[misses]):
            taken = _search(cells, int(rows.streams[i]), int(rows.counts[i]))
            if taken is None:
                return int(rows.streams[i])
            found[rows.row_stream == i] = taken
    return Slot(rows.streams, rows.row_stream, found)


def _rows(cells: Cells, ubatch: Ubatch) -> _Rows:
    n = ubatch.n_tokens
    if cells.n_stream == 1:
        return _Rows(np.zeros(1, np.intp), np.zeros(n, np.intp), np.array([n]), np.arange(n))
    if ubatch.n_seq_tokens:
        row_stream = np.repeat(np.arange(ubatch.n_seqs), ubatch.n_seq_tokens)
        streams = ubatch.first_seq[:: ubatch.n_seq_tokens].astype(np.intp)
        counts = np.full(ubatch.n_seqs, ubatch.n_seq_tokens)
        return _Rows(streams, row_stream, counts, np.arange(n) - row_stream * ubatch.n_seq_tokens)
    streams, row_stream, counts = np.unique(ubatch.first_seq, return_inverse=True, return_counts=True)
    order = row_stream.argsort(kind="stable")
    within = np.empty(n, np.intp)
    within[order] = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    return _Rows(streams.astype(np.intp), row_stream, counts, within)


def _start(head: NDArray[np.int64], used: NDArray[np.int64], n: NDArray[np.intp]) -> NDArray[np.int64]:
    """Begin anew at 0 when far more than needed must lie free before the head."""
    return np.where(head > used + 2 * n, 0, head)


def _search(cells: Cells, stream: int, n: int) -> NDArray[np.intp] | None:
    """The first n usable cells from the start on, wrapping; None if there are fewer."""
    free = np.flatnonzero(cells.usable(np.full(cells.n_cells, stream), np.arange(cells.n_cells)))
    if len(free) < n:
        return None
    at = slice(stream, stream + 1)
    start = int(_start(cells.head[at], cells.used[at], np.array([n]))[0])
    turn = int(np.searchsorted(free, start))
    return np.concatenate((free[turn:], free[:turn]))[:n]
