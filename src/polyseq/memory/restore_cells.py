"""Saving and restoring the cells of a KV cache: which cells hold some sequences, and which would take them again.

A cell goes back to where it was if all of them can, else to the first free ones: order and place do not matter to
attention, only to the last bits of its sums.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyseq.batch.seqset import single_masks
from polyseq.errors import NoSlot
from polyseq.memory.cache_part import PartName
from polyseq.memory.cells import FREE, Cells
from polyseq.memory.saved import Placing, SavedPart, no_room


def saved_cells(cells: Cells, name: PartName, seq_ids: list[int]) -> SavedPart:
    """Pure. All that these sequences hold, by stream and position."""
    held = [cells.held_by(s) for s in seq_ids]
    which = np.zeros((cells.n_stream, cells.n_cells), np.bool_)
    for stream, mask in held:
        which[stream] |= mask
    streams, at = np.nonzero(which)
    order = np.lexsort((cells.pos[streams, at], streams))
    streams, at = streams[order], at[order]
    index = np.full(which.shape, -1, np.int32)
    index[streams, at] = np.arange(len(at))
    entries = [index[stream, mask] for stream, mask in held]
    seqs = [np.full(len(e), s, np.int32) for s, e in zip(seq_ids, entries, strict=True)]
    none = [np.zeros(0, np.int32)]
    return SavedPart(
        name,
        pos=cells.pos[streams, at],
        entry=np.concatenate(none + entries),
        seq=np.concatenate(none + seqs),
        streams=streams.astype(np.int32),
        cells=at.astype(np.int32),
        heads=cells.head.astype(np.int32),
        starts=np.full(cells.n_seq_max, FREE, np.int32),
    )


def place_cells(cells: Cells, part: SavedPart) -> Placing | NoSlot:
    """Pure. A free cell for all that is saved; of a window, where room is short, only what will be seen again."""
    found = _place(cells, part, np.ones(part.n, np.bool_))
    if isinstance(found, NoSlot) and cells.n_swa:
        last = part.last_of_each(cells.n_seq_max)
        seen = np.zeros(part.n, np.bool_)
        seen[part.entry] |= last[part.seq] + 1 - part.pos[part.entry] < cells.n_swa
        return _place(cells, part, seen)
    return found


def _place(cells: Cells, part: SavedPart, wanted: NDArray[np.bool_]) -> Placing | NoSlot:
    """One cell per entry in one stream for all, one per (entry, sequence) where each sequence has its own."""
    if cells.n_stream == 1:
        entry = np.flatnonzero(wanted)
        streams = np.zeros(len(entry), np.intp)
    else:
        pairs = np.lexsort((part.entry, part.seq))
        pairs = pairs[wanted[part.entry[pairs]]]
        entry, streams = part.entry[pairs].astype(np.intp), part.seq[pairs].astype(np.intp)
    at = part.cells[entry].astype(np.intp)
    inside = at < cells.n_cells
    distinct = len(np.unique(np.stack((streams, at)), axis=1).T) == len(at)
    if distinct and inside.all() and (cells.pos[streams, at] == FREE).all():
        return Placing(part.name, entry, streams, at, _same_streams(cells, part, entry, streams))
    for stream in np.unique(streams):
        mine = streams == stream
        free = np.flatnonzero(cells.pos[stream] == FREE)
        needed = int(mine.sum())
        if needed > len(free):
            return no_room(part.name, needed=needed, free=len(free), n_cells=cells.n_cells, stream=int(stream))
        at[mine] = free[:needed]
    return Placing(part.name, entry, streams, at, as_saved=False)


def _same_streams(cells: Cells, part: SavedPart, entry: NDArray[np.intp], streams: NDArray[np.intp]) -> bool:
    """Every cell is in the stream it was in, and each stream's next search can start where it would have."""
    heads = part.heads
    there = len(heads) == cells.n_stream and bool(((heads >= 0) & (heads <= cells.n_cells)).all())
    return there and bool((part.streams[entry] == streams).all())


def restore_cells(cells: Cells, part: SavedPart, placing: Placing) -> None:
    """Changes the cells: what was saved is held again. A stream that was empty goes on where it would have."""
    streams, at = placing.streams, placing.cells
    was_empty = cells.used == 0
    cells.pos[streams, at] = part.pos[placing.entry]
    if cells.n_stream == 1:
        words = cells.seqs.shape[2]
        masks = np.zeros((part.n, words), np.uint64)
        np.bitwise_or.at(masks, part.entry, single_masks(part.seq, words))
        cells.seqs[0, at] = masks[placing.entry]
    else:
        cells.seqs[streams, at] = 1
    for stream in np.unique(streams):
        cells.recount(int(stream))
        if was_empty[stream]:
            cells.head[stream] = part.heads[stream] if placing.as_saved else cells.end[stream]
    cells.refresh_ranges(np.unique(part.seq).tolist())
