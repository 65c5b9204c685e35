"""State cells as people read them: one run per cell, with the position of the last token it has taken in."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from polyseq.memory.cell_map import CellRun, StreamMap
from polyseq.memory.running import Running


def state_map(running: Mapping[int, Running], n_cells: int) -> StreamMap:
    """Pure. One stream; free cells are joined into runs."""
    pos: dict[int, int] = {}
    seqs: dict[int, list[int]] = {}
    for seq_id in sorted(running):
        for p, cell in running[seq_id].snapshots:
            pos[cell] = p
            seqs.setdefault(cell, []).append(seq_id)
    runs: list[CellRun] = []
    for used, group in groupby(range(n_cells), lambda cell: cell in pos):
        cells = list(group)
        if used:
            runs += [CellRun(cell, 1, pos[cell], tuple(seqs[cell])) for cell in cells]
        else:
            runs.append(CellRun(cells[0], len(cells), -1, ()))
    return StreamMap(
        stream=0,
        n_cells=n_cells,
        used=len(pos),
        head=0,
        has_shift=False,
        largest_run=max((run.count for run in runs if not run.seq_ids), default=0),
        runs=tuple(runs),
    )
