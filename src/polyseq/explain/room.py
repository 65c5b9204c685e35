"""What would make room, for a batch that was answered with `NoSlot`; every proposal was planned before it is given.

Enters: the refusal, the checked batch, the memory as something to try on. Leaves: changes, each of which alone is
enough. The memory is left as it is: proposals are tried on copies of its metadata, which hold no tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from polyseq.batch import CheckedBatch
from polyseq.batch.part import keep_rows
from polyseq.batch.seqset import ids_of
from polyseq.errors import NoSlot, SequenceError
from polyseq.explain.changes import (
    Change,
    ChangeSetting,
    RemoveRange,
    RemoveRanges,
    TruncateBatch,
    TruncateSequences,
)
from polyseq.memory import Memory, Trial, has_room, held_alone, longest_start
from polyseq.split.spans import n_whole


def changes_that_make_room(error: NoSlot, batch: CheckedBatch, trial: Trial) -> tuple[Change, ...]:
    """Pure. The largest part that fits now, what could be removed, the least n_ctx that would do, and other shapes of
    the cache that would; in this order, those that a dry run confirms.
    """
    found: list[Change] = []
    shorter = _shorter(batch, trial)
    if shorter is not None:
        found.append(shorter)
    removal = _removal(error, batch, trial)
    if removal is not None:
        found.append(removal)
    n_cells = trial.least_n_cells(batch)
    if n_cells is not None:
        found.append(ChangeSetting("n_ctx", n_cells * trial.settings.n_stream))
    if not trial.settings.unified and trial.fits(
        batch, unified=True, n_cells=trial.settings.n_cells * trial.settings.n_stream
    ):
        found.append(ChangeSetting("unified", True))
    if not trial.settings.swa_full and trial.fits(batch, swa_full=True):
        found.append(ChangeSetting("swa_full", True))
    return tuple(found)


# ---- fewer rows ----------------------------------------------------------------------------------------


def _shorter(batch: CheckedBatch, trial: Trial) -> TruncateBatch | TruncateSequences | None:
    """The most rows that fit now: from the start of each sequence where each has a stream, else of the batch."""
    if not trial.settings.unified and not batch.coupled:
        by_sequence = _start_of_each(batch, trial)
        if by_sequence is not None:
            return by_sequence
    n = longest_start(
        batch, lambda part: has_room(trial.memory, part, trial.settings.n_ubatch), n_most=batch.n_tokens - 1
    )
    return TruncateBatch(n) if n else None


def _start_of_each(batch: CheckedBatch, trial: Trial) -> TruncateSequences | None:
    sizes = np.diff(batch.set_offsets)  # here a set is a sequence
    seqs = batch.first_seq[batch.set_rows[batch.set_offsets[:-1]]]
    n_kept = np.minimum(sizes, np.array([s.free for s in trial.memory.map().streams])[seqs])
    if batch.span is not None:
        of_set = np.split(batch.set_rows, batch.set_offsets[1:-1])
        n_kept = np.array([n_whole(batch.span, rows, n) for rows, n in zip(of_set, n_kept.tolist(), strict=True)])
    rank = np.arange(batch.n_tokens) - np.repeat(batch.set_offsets[:-1], sizes)
    rows = np.sort(batch.set_rows[rank < np.repeat(n_kept, sizes)])
    if not len(rows) or not trial.fits(keep_rows(batch, rows)):
        return None
    return TruncateSequences(tuple(zip(seqs.tolist(), n_kept.tolist(), strict=True)))


# ---- less held -----------------------------------------------------------------------------------------


def _removal(error: NoSlot, batch: CheckedBatch, trial: Trial) -> RemoveRange | RemoveRanges | None:
    """The mildest that is enough: one sequence that the batch does not use, the oldest positions of one that it does,
    or several of either.
    """
    own = held_alone(trial.memory, error.part)
    in_batch = set(ids_of(np.bitwise_or.reduce(batch.sets, axis=0)).tolist())
    for removal in _single(error, own, in_batch):
        if _does(trial, batch, (removal,)):
            return removal
    for several in _several(error, own, in_batch):
        few = _needed_of(several, trial, batch)
        if few is not None:
            return RemoveRanges(few)
    return None


def _single(error: NoSlot, own: dict[int, NDArray[np.int32]], in_batch: set[int]) -> list[RemoveRange]:
    missing = error.needed - error.free
    others = [RemoveRange(s, -1, -1, len(pos)) for s, pos in own.items() if s not in in_batch and len(pos) >= missing]
    oldest = [
        RemoveRange(s, int(pos[0]), int(pos[missing - 1]) + 1, missing)
        for s, pos in own.items()
        if s in in_batch and len(pos) > missing > 0
    ]
    return sorted(others, key=lambda r: r.n_freed or 0) + sorted(oldest, key=lambda r: -len(own[r.seq_id]))


def _several(error: NoSlot, own: dict[int, NDArray[np.int32]], in_batch: set[int]) -> Iterator[tuple[RemoveRange, ...]]:
    """Others, those that free most first; then beside them all but the newest position of those in the batch."""
    others = [RemoveRange(s, -1, -1, len(pos)) for s, pos in own.items() if s not in in_batch]
    others.sort(key=lambda r: -(r.n_freed or 0))
    yield tuple(others)
    oldest = [
        RemoveRange(s, int(pos[0]), int(pos[-1]), len(pos) - 1)
        for s, pos in own.items()
        if s in in_batch and len(pos) > 1
    ]
    oldest.sort(key=lambda r: -(r.n_freed or 0))
    yield (*others, *oldest)


def _needed_of(removals: tuple[RemoveRange, ...], trial: Trial, batch: CheckedBatch) -> tuple[RemoveRange, ...] | None:
    """Those that are left when each that is not needed is left out, the smallest tried first; None: all do not do."""
    if len(removals) < 2 or not _does(trial, batch, removals):
        return None
    kept = list(removals)
    for removal in reversed(removals):
        fewer = tuple(r for r in kept if r is not removal)
        if _does(trial, batch, fewer):
            kept = list(fewer)
    return tuple(_shortened(i, kept, trial, batch) for i in range(len(kept)))


def _shortened(i: int, kept: list[RemoveRange], trial: Trial, batch: CheckedBatch) -> RemoveRange:
    """Changes the list: its i-th removal takes no more positions than are needed beside the others."""
    removal = kept[i]
    low, high = removal.p0, removal.p1
    while high - low > 1:  # whole sequences are (-1, -1)
        middle = (low + high) // 2
        kept[i] = RemoveRange(removal.seq_id, removal.p0, middle, middle - removal.p0)
        low, high = (low, middle) if _does(trial, batch, tuple(kept)) else (middle, high)
    if removal.p1 >= 0:
        kept[i] = RemoveRange(removal.seq_id, removal.p0, high, high - removal.p0)
    return kept[i]


def _does(trial: Trial, batch: CheckedBatch, removals: tuple[RemoveRange, ...]) -> bool:
    memory = trial.copy()
    return (
        memory is not None
        and _removed(memory, removals)
        and has_room(memory, batch, trial.settings.n_ubatch)
        and not memory.why_torn(batch)
    )


def _removed(memory: Memory, removals: tuple[RemoveRange, ...]) -> bool:
    """Changes the memory; False where it cannot remove one of them."""
    try:
        return all(memory.rm(r.seq_id, r.p0, r.p1) for r in removals)
    except SequenceError:
        return False
