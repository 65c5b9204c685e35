"""The cells as people read them: runs of cells with rising positions and the same sequences, and what is free."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from polyseq.batch.seqset import ids_of
from polyseq.memory.cells import FREE, Cells


@dataclass(frozen=True, slots=True)
class CellRun:
    """Cells `first..first+count-1`, positions rising by one from `pos`; free cells have pos -1 and no sequences."""

    first: int
    count: int
    pos: int
    seq_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StreamMap:
    """One stream: how full it is, and run by run what it holds."""

    stream: int
    n_cells: int
    used: int
    head: int
    has_shift: bool
    largest_run: int  # the longest row of free cells
    runs: tuple[CellRun, ...]

    @property
    def free(self) -> int:
        """Cells that hold nothing."""
        return self.n_cells - self.used

    def __str__(self) -> str:
        lines = [
            f"stream {self.stream}: {self.used} of {self.n_cells} cells used, largest free run {self.largest_run}, "
            f"head {self.head}" + (", shift pending" if self.has_shift else "")
        ]
        for run in self.runs:
            cells = f"  [{run.first:>5} .. {run.first + run.count - 1:>5}]"
            if run.seq_ids:
                ids = ", ".join(map(str, run.seq_ids))
                lines.append(f"{cells} p{run.pos}..{run.pos + run.count - 1} of {{{ids}}}")
            else:
                lines.append(f"{cells} free")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class CellMap:
    """All streams of a memory at one moment."""

    streams: tuple[StreamMap, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.streams))

    def to_json(self) -> list[dict[str, Any]]:
        """Pure. Plain lists and numbers."""
        return [asdict(s) for s in self.streams]


def cell_map(cells: Cells) -> CellMap:
    """Pure. A picture of the cells, linear in their number."""
    return CellMap(tuple(_stream_map(cells, stream) for stream in range(cells.n_stream)))


def largest_run(cells: Cells, stream: int) -> int:
    """Pure. The longest row of free cells in a stream."""
    taken = np.flatnonzero(np.concatenate(([True], cells.pos[stream] != FREE, [True])))
    return int(np.diff(taken).max()) - 1


def _stream_map(cells: Cells, stream: int) -> StreamMap:
    pos, seqs = cells.pos[stream], cells.seqs[stream]
    used = pos != FREE
    breaks = (seqs[1:] != seqs[:-1]).any(axis=1) | (used[1:] & (pos[1:] != pos[:-1] + 1))
    starts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    counts = np.diff(np.append(starts, cells.n_cells))
    runs = tuple(
        CellRun(int(first), int(count), int(pos[first]), _seq_ids(cells, stream, int(first)))
        for first, count in zip(starts, counts, strict=True)
    )
    return StreamMap(
        stream=stream,
        n_cells=cells.n_cells,
        used=int(cells.used[stream]),
        head=int(cells.head[stream]),
        has_shift=bool(cells.has_shift[stream]),
        largest_run=largest_run(cells, stream),
        runs=runs,
    )


def _seq_ids(cells: Cells, stream: int, cell: int) -> tuple[int, ...]:
    if cells.n_stream > 1:
        return (stream,) if cells.pos[stream, cell] != FREE else ()
    return tuple(int(s) for s in ids_of(cells.seqs[0, cell]))
