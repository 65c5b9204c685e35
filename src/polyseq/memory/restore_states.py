"""Saving and restoring running states: which cells hold those of some sequences, and which would take them again."""

from __future__ import annotations

import numpy as np

from polyseq.errors import SavedStateError
from polyseq.memory.cache_layer import PartName
from polyseq.memory.running import Running
from polyseq.memory.saved import Placing, SavedPart
from polyseq.memory.states import States


def saved_states(states: States, name: PartName, seq_ids: list[int]) -> SavedPart:
    """Pure. The states that these sequences hold, each once."""
    running = {s: states.running[s] for s in seq_ids if s in states.running}
    held = [(s, pos, cell) for s, r in running.items() for pos, cell in r.snapshots]
    cells = sorted({(cell, pos) for _, pos, cell in held})
    index = {place: i for i, place in enumerate(cells)}
    starts = np.full(states.n_seq_max, -1, np.int32)
    for s, r in running.items():
        starts[s] = r.start
    of_cell = np.array(cells, np.int32).reshape(-1, 2)
    pairs = np.array([(index[cell, pos], s) for s, pos, cell in held], np.int32).reshape(-1, 2)
    return SavedPart(
        name,
        pos=of_cell[:, 1],
        entry=pairs[:, 0],
        seq=pairs[:, 1],
        streams=np.zeros(len(cells), np.int32),
        cells=of_cell[:, 0],
        heads=np.zeros(1, np.int32),
        starts=starts,
    )


def place_states(states: States, part: SavedPart, *, n_rs_seq: int) -> Placing:
    """Pure. Spare cells, of which there are enough, for the states that can be gone back to here.

    Raises `SavedStateError` for a sequence whose states do not follow its first token.
    """
    starts = np.append(part.starts, -1)[np.minimum(part.seq, len(part.starts))]
    if not ((starts >= 0) & (starts <= part.pos[part.entry])).all():
        raise SavedStateError(f"part {part.name}: states and first tokens of sequences do not go together")
    newest = part.last_of_each(states.n_seq_max)
    kept = newest[part.seq] - part.pos[part.entry] <= n_rs_seq
    entry = np.unique(part.entry[kept]).astype(np.intp)
    taken = states.in_use()
    spare = np.array([c for c in range(states.n_cells) if c not in taken], np.intp)[: len(entry)]
    return Placing(part.name, entry, np.zeros(len(entry), np.intp), spare, as_saved=False)


def restore_states(states: States, part: SavedPart, placing: Placing) -> None:
    """Changes the states: saved sequences are held again."""
    place = dict(zip(placing.entry.tolist(), placing.cells.tolist(), strict=True))
    for s in np.unique(part.seq).tolist():
        mine = [int(e) for e in part.entry[part.seq == s] if int(e) in place]
        snapshots = sorted(((int(part.pos[e]), place[e]) for e in mine), reverse=True)
        states.put(s, Running(int(part.starts[s]), tuple(snapshots)))
