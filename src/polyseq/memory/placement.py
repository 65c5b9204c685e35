"""Step 4: find room. Pure searches over cells; llama.cpp's `find_slot`, stream by stream.

A search starts at the stream's head, or at 0 when much lies free before it, and takes usable cells in order, wrapping:
free ones, and with a window those that no query still to come can see. The cells need not be neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.batch.by_sequence import BySequence
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

    def from_each(self, start: NDArray[np.int64]) -> NDArray[np.intp]:
        """Pure. [n_tokens] cells one after the other from each stream's start on."""
        if len(start) == 1:
            return self.within + int(start[0])
        found: NDArray[np.intp] = start[self.row_stream] + self.within
        return found


def find_slot(cells: Cells, ubatch: Ubatch, *, shared: bool = False) -> Slot | int:
    """Pure. A usable cell for every row, or the stream that has too few. `shared`: see `Cells.usable`."""
    rows = _rows(cells, ubatch)
    start = _start(cells.head[rows.streams], cells.used[rows.streams], rows.counts)
    if _nothing_behind(cells, rows, start):
        return Slot(rows.streams, rows.row_stream, rows.from_each(start))
    return _look(cells, rows, start, shared=shared)


def _nothing_behind(cells: Cells, rows: _Rows, start: NDArray[np.int64]) -> bool:
    """Every stream has room from its start on, and no cell there or behind is in use: none needs to be looked at."""
    hindered = (start < cells.end[rows.streams]) | (start + rows.counts > cells.n_cells)
    return not hindered[hindered.argmax()]


def _look(cells: Cells, rows: _Rows, start: NDArray[np.int64], *, shared: bool) -> Slot | int:
    """The cells from each start where all of them are usable, else a search of the stream."""
    found = rows.from_each(start)
    inside = np.minimum(found, cells.n_cells - 1)
    misses = ~cells.usable(rows.streams[rows.row_stream], inside, shared=shared) | (found >= cells.n_cells)
    if misses.any():
        for i in np.unique(rows.row_stream[misses]):
            taken = _search(cells, int(rows.streams[i]), int(rows.counts[i]), shared=shared)
            if taken is None:
                return int(rows.streams[i])
            found[rows.row_stream == i] = taken
    return Slot(rows.streams, rows.row_stream, found)


def _rows(cells: Cells, ubatch: Ubatch) -> _Rows:
    n = ubatch.n_tokens
    if cells.n_stream == 1:
        return _Rows(np.zeros(1, np.intp), np.zeros(n, np.intp), np.array([n]), np.arange(n))
    if (ubatch.equal_seqs and ubatch.n_seq_tokens == 1) or (not ubatch.n_seq_tokens and ubatch.n_seqs == n):
        each = np.arange(n)
        return _Rows(ubatch.first_seq.astype(np.intp), each, np.ones(n, np.intp), np.zeros(n, np.intp))
    if ubatch.n_seqs == 1:
        return _Rows(ubatch.first_seq[:1].astype(np.intp), np.zeros(n, np.intp), np.array([n]), np.arange(n))
    if ubatch.equal_seqs and ubatch.n_seq_tokens:
        row_stream = np.repeat(np.arange(ubatch.n_seqs), ubatch.n_seq_tokens)
        streams = ubatch.first_seq[:: ubatch.n_seq_tokens].astype(np.intp)
        counts = np.full(ubatch.n_seqs, ubatch.n_seq_tokens)
        return _Rows(streams, row_stream, counts, np.arange(n) - row_stream * ubatch.n_seq_tokens)
    by_seq = BySequence.of(ubatch.seq_ids)
    counts = by_seq.bounds[1:] - by_seq.starts
    row_stream = np.arange(len(counts)).repeat(counts)
    within = np.arange(n) - by_seq.starts.repeat(counts)
    if not by_seq.in_order:
        row_stream[by_seq.row], within[by_seq.row] = row_stream.copy(), within.copy()
    return _Rows(by_seq.seq[by_seq.starts].astype(np.intp), row_stream, counts, within)


def _start(head: NDArray[np.int64], used: NDArray[np.int64], n: NDArray[np.intp]) -> NDArray[np.int64]:
    """Begin anew at 0 when far more than needed must lie free before the head."""
    return np.where(head > used + 2 * n, 0, head)


def _search(cells: Cells, stream: int, n: int, *, shared: bool) -> NDArray[np.intp] | None:
    """The first n usable cells from the start on, wrapping; None if there are fewer."""
    free = np.flatnonzero(cells.usable(np.full(cells.n_cells, stream), np.arange(cells.n_cells), shared=shared))
    if len(free) < n:
        return None
    at = slice(stream, stream + 1)
    start = int(_start(cells.head[at], cells.used[at], np.array([n]))[0])
    turn = int(np.searchsorted(free, start))
    return np.concatenate((free[turn:], free[:turn]))[:n]
