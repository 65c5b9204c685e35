"""Each token's way: batch row -> ubatch row -> stream and cell -> output row.

Enters: a `Simulation`. Leaves: columns over batch rows, and runs of rows that go the same way for people.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.explain.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Ways:
    """Columns over batch rows."""

    ubatch: NDArray[np.intp]  # [n_tokens] which ubatch
    ubatch_row: NDArray[np.intp]  # [n_tokens] its row there
    stream: NDArray[np.intp]  # [n_tokens] -1 where nothing is kept
    cell: NDArray[np.intp]  # [n_tokens] its cell in that stream, -1 where nothing is kept
    output_row: NDArray[np.intp]  # [n_tokens] its row among the results, as computed; -1 without output


@dataclass(frozen=True, slots=True)
class WayRun:
    """Batch rows `row..row+count-1`: the same sequences, and ubatch row, position and cell all rise by one."""

    row: int
    count: int
    seq_ids: tuple[int, ...]
    pos: int
    ubatch: int
    ubatch_row: int
    stream: int
    cell: int
    output_row: int


def ways(simulation: Simulation) -> Ways:
    """Pure."""
    n = simulation.n_tokens
    order = np.concatenate([u.batch_idxs for u in simulation.ubatches])
    counts = simulation.block_tokens
    starts = np.cumsum(counts) - counts
    outputs = np.concatenate([u.output for u in simulation.ubatches])
    absent = np.full(n, -1, np.intp)
    cells, streams = absent, absent
    if simulation.slots:
        cells = np.concatenate([s.cells for s in simulation.slots])
        streams = np.concatenate([s.row_streams for s in simulation.slots])

    def by_batch_row(column: NDArray[np.intp]) -> NDArray[np.intp]:
        placed = np.empty(n, np.intp)
        placed[order] = column
        return placed

    return Ways(
        ubatch=by_batch_row(np.repeat(np.arange(len(counts)), counts)),
        ubatch_row=by_batch_row(np.arange(n) - np.repeat(starts, counts)),
        stream=by_batch_row(streams),
        cell=by_batch_row(cells),
        output_row=by_batch_row(np.where(outputs, np.cumsum(outputs) - 1, -1)),
    )


def way_runs(simulation: Simulation, found: Ways) -> list[WayRun]:
    """Pure. All rows in batch order, as few runs as possible."""
    batch = simulation.checked
    pos = batch.pos[0]
    same = [np.diff(column) == 0 for column in (batch.i_set, found.ubatch, found.stream)]
    kept = int(bool(simulation.slots))
    rising = [np.diff(pos) == 1, np.diff(found.ubatch_row) == 1, np.diff(found.cell) == kept]
    quiet = (found.output_row[1:] < 0) & (found.output_row[:-1] < 0)
    follows = np.logical_and.reduce([*same, *rising, quiet])
    first = np.flatnonzero(np.concatenate(([True], ~follows)))
    counts = np.diff(np.append(first, batch.n_tokens))
    return [
        WayRun(
            row=i,
            count=n,
            seq_ids=tuple(batch.seq_ids[batch.seq_offsets[i] : batch.seq_offsets[i + 1]].tolist()),
            pos=int(pos[i]),
            ubatch=int(found.ubatch[i]),
            ubatch_row=int(found.ubatch_row[i]),
            stream=int(found.stream[i]),
            cell=int(found.cell[i]),
            output_row=int(found.output_row[i]),
        )
        for i, n in zip(first.tolist(), counts.tolist(), strict=True)
    ]
