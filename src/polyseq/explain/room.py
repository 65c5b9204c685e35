"""What would make room, for a batch that was answered with `NoSlot`; every proposal was planned before it is given.

Enters: the refusal, the checked batch, the memory. Leaves: changes, each of which alone is enough. The memory is left
as it is: proposals are tried on copies of its metadata, which hold no tensors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyseq.batch import CheckedBatch
from polyseq.batch.part import keep_rows
from polyseq.batch.seqset import ids_of, single_masks
from polyseq.errors import NoSlot
from polyseq.explain.changes import Change, ChangeSetting, RemoveRange, TruncateBatch, TruncateSequences
from polyseq.memory import KvCache
from polyseq.memory.cells import FREE


def changes_that_make_room(error: NoSlot, batch: CheckedBatch, memory: KvCache, n_ubatch: int) -> tuple[Change, ...]:
    """Pure. The largest part that fits now, what could be removed, a large enough n_ctx, and whether one cache for
    all would do; in this order, those that a dry run confirms.
    """
    found: list[Change] = []
    shorter = _shorter(batch, memory, n_ubatch)
    if shorter is not None:
        found.append(shorter)
    for removal in _removals(error, batch, memory):
        trial = resized(memory, memory.n_cells)
        trial.rm(removal.seq_id, removal.p0, removal.p1)
        if _fits(trial, batch, n_ubatch):
            found.append(removal)
            break
    n_cells = memory.n_cells + _most_missing(batch, memory)
    if _fits(resized(memory, n_cells), batch, n_ubatch):
        found.append(ChangeSetting("n_ctx", n_cells * memory.n_stream))
    if memory.n_stream > 1 and _fits(as_unified(memory), batch, n_ubatch):
        found.append(ChangeSetting("unified", True))
    return tuple(found)


# ---- trials --------------------------------------------------------------------------------------------


def resized(memory: KvCache, n_cells: int) -> KvCache:
    """Pure. The same metadata in a memory of as many or more cells per stream."""
    copy = KvCache(n_cells=n_cells, n_seq_max=memory.n_seq_max, unified=memory.n_stream == 1, n_pos=memory.n_pos)
    for name in ("pos", "shift", "seqs"):
        getattr(copy.cells, name)[:, : memory.n_cells] = getattr(memory.cells, name)
    for name in ("head", "used", "end", "has_shift", "pos_min", "pos_max"):
        getattr(copy.cells, name)[:] = getattr(memory.cells, name)
    return copy


def as_unified(memory: KvCache) -> KvCache:
    """Pure. What all streams hold, in one stream of as many cells as they have together."""
    one = KvCache(
        n_cells=memory.n_cells * memory.n_stream, n_seq_max=memory.n_seq_max, unified=True, n_pos=memory.n_pos
    )
    streams, cells = np.nonzero(memory.cells.pos != FREE)
    n = len(cells)
    one.cells.pos[0, :n] = memory.cells.pos[streams, cells]
    one.cells.seqs[0, :n] = single_masks(streams.astype(np.int32), one.cells.seqs.shape[2])
    one.cells.head[0] = one.cells.used[0] = one.cells.end[0] = n
    one.cells.pos_min[:], one.cells.pos_max[:] = memory.cells.pos_min, memory.cells.pos_max
    return one


def _fits(memory: KvCache, batch: CheckedBatch, n_ubatch: int) -> bool:
    return not isinstance(memory.init_batch(batch, n_ubatch), NoSlot)


# ---- proposals -----------------------------------------------------------------------------------------


def _most_missing(batch: CheckedBatch, memory: KvCache) -> int:
    """Cells that the stream with the greatest want is short of."""
    free = memory.n_cells - memory.cells.used
    if memory.n_stream == 1:
        return batch.n_tokens - int(free[0])
    return int((np.bincount(batch.first_seq, minlength=memory.n_stream) - free).max())


def _shorter(batch: CheckedBatch, memory: KvCache, n_ubatch: int) -> TruncateBatch | TruncateSequences | None:
    """The most rows that fit now: from the batch's start, or from the start of each sequence."""
    free = memory.n_cells - memory.cells.used
    if memory.n_stream == 1:
        n = min(int(free[0]), batch.n_tokens)
        fits = n > 0 and _fits(memory, keep_rows(batch, np.arange(n)), n_ubatch)
        return TruncateBatch(n) if fits else None
    sizes = np.diff(batch.set_offsets)  # here a set is a sequence
    seqs = batch.first_seq[batch.set_rows[batch.set_offsets[:-1]]]
    n_kept = np.minimum(sizes, free[seqs])
    rank = np.arange(batch.n_tokens) - np.repeat(batch.set_offsets[:-1], sizes)
    rows = np.sort(batch.set_rows[rank < np.repeat(n_kept, sizes)])
    if not len(rows) or not _fits(memory, keep_rows(batch, rows), n_ubatch):
        return None
    return TruncateSequences(tuple(zip(seqs.tolist(), n_kept.tolist(), strict=True)))


def _removals(error: NoSlot, batch: CheckedBatch, memory: KvCache) -> list[RemoveRange]:
    """Candidates, mildest first: a sequence that the batch does not use (the smallest that is enough), then the
    oldest positions of one that it does use.
    """
    missing = error.needed - error.free
    in_batch = set(ids_of(np.bitwise_or.reduce(batch.sets, axis=0)).tolist())
    own = {h.seq_id: _pos_held_alone(memory, h.seq_id) for h in error.holders}
    others = [RemoveRange(s, -1, -1, len(pos)) for s, pos in own.items() if s not in in_batch and len(pos) >= missing]
    oldest = [
        RemoveRange(s, int(pos[0]), int(pos[missing - 1]) + 1, missing)
        for s, pos in own.items()
        if s in in_batch and len(pos) > missing > 0
    ]
    return sorted(others, key=lambda r: r.n_freed or 0) + sorted(oldest, key=lambda r: -len(own[r.seq_id]))


def _pos_held_alone(memory: KvCache, seq_id: int) -> NDArray[np.int32]:
    """[n] i32 ascending: positions of the cells that become free when the sequence is removed."""
    cells = memory.cells
    stream, held = cells.held_by(seq_id)
    if memory.n_stream == 1:
        only = single_masks(np.array([seq_id], np.int32), cells.seqs.shape[2])
        held = held & (cells.seqs[0] == only).all(axis=1)
    return np.sort(cells.pos[stream, held])
