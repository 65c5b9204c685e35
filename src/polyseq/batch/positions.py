"""Step 2, its last part: where each row stands in its sequences.

Enters: positions as the caller gave them and what the memory holds. Leaves: positions as one section-major array,
or an error for a sequence that does not continue, leaves a hole, runs backwards, or shares rows with another one that
stands elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from polyseq.batch.by_sequence import BySequence
from polyseq.batch.intake import AUTO_POS, MOST
from polyseq.batch.seqset import n_words, union_by_row
from polyseq.errors import (
    CoupledDiverged,
    MemoryPosition,
    MropeEmbdPosition,
    MropeTokenPosition,
    PositionDecreasing,
    PositionGap,
)


@dataclass(frozen=True, slots=True)
class SeqRanges:
    """What a memory holds of each sequence."""

    pos_min: NDArray[np.int32]  # [n_seq_max] i32, -1 = absent
    pos_max: NDArray[np.int32]  # [n_seq_max] i32, -1 = absent

    @staticmethod
    def empty(n_seq_max: int) -> SeqRanges:
        """Pure. The ranges of a memory that holds nothing."""
        absent = np.full(n_seq_max, -1, np.int32)
        return SeqRanges(absent, absent)


def continue_all(by_seq: BySequence, n_pos: int, ranges: SeqRanges) -> NDArray[np.int32]:
    """Pure. [n_pos, n_rows] where every row is of one sequence and continues it. Needs no check but for an end.

    What `resolve_positions` and `check_positions` would come to, without the work.
    """
    starts = by_seq.starts
    first = ranges.pos_max[by_seq.seq[starts]].astype(np.int64) + 1
    if by_seq.one_each:
        by_pair = first
    else:
        by_pair = np.arange(len(by_seq.row)) + (first - starts).repeat(by_seq.bounds[1:] - starts)
    resolved = by_pair
    if not by_seq.in_order:
        resolved = np.empty_like(by_pair)
        resolved[by_seq.row] = by_pair
    _refuse_beyond(resolved)
    sections = np.empty((n_pos, len(resolved)), np.int32)
    sections[:] = resolved
    return sections


def resolve_positions(
    pos: NDArray[np.int32],
    seq_ids: NDArray[np.int32],
    offsets: NDArray[np.int64] | None,
    by_seq: BySequence,
    ranges: SeqRanges,
) -> NDArray[np.int32]:
    """Pure. [n_rows, n_pos] as given -> [n_pos, n_rows] section-major, with AUTO_POS rows continued.

    A row without a position takes the next one of its smallest sequence; the others of its set follow it.
    offsets: [n_rows + 1] into seq_ids, None where each row has one sequence.
    """
    sections = pos.T.copy()
    if sections.reshape(-1)[sections.argmin()] > AUTO_POS:
        return sections
    auto = sections[0] == AUTO_POS
    if offsets is None:
        resolved = _continue_single(sections[0], auto, by_seq, ranges.pos_max)
    else:
        resolved = _continue_runs(sections[0], auto, seq_ids, offsets, ranges.pos_max)
    _refuse_beyond(resolved)
    sections[:, auto] = resolved[auto]
    return sections


def _refuse_beyond(resolved: NDArray[np.int64]) -> None:
    if resolved[resolved.argmax()] > MOST:
        row = int(np.argmax(resolved > MOST))
        raise PositionGap(
            f"row {row}: its sequence has no position left after {MOST}",
            row=row,
            value=int(resolved[row]),
            limit=MOST,
        )


def _continue_single(
    pos: NDArray[np.int32], auto: NDArray[np.bool_], by_seq: BySequence, pos_max: NDArray[np.int32]
) -> NDArray[np.int64]:
    """One sequence per row: inside each sequence, count on from its last given position, else from memory."""
    begins = np.zeros(len(pos), np.bool_)
    begins[by_seq.starts] = True
    given = ~by_seq.take(auto)
    index = np.arange(len(pos))
    anchor = np.maximum.accumulate(np.where(begins | given, index, 0))
    base = np.where(given[anchor], by_seq.take(pos)[anchor], pos_max[by_seq.seq].astype(np.int64) + 1)
    resolved = np.empty(len(pos), np.int64)
    resolved[by_seq.row] = base + (index - anchor)
    return resolved


def _continue_runs(
    pos: NDArray[np.int32],
    auto: NDArray[np.bool_],
    seq_ids: NDArray[np.int32],
    offsets: NDArray[np.int64],
    pos_max: NDArray[np.int32],
) -> NDArray[np.int64]:
    """Shared rows: walk runs of rows with the same set, since a run moves all sequences of its set on."""
    n = len(auto)
    masks = union_by_row(seq_ids, offsets, n_words(len(pos_max)))
    same = np.zeros(n, np.bool_)
    same[1:] = (masks[1:] == masks[:-1]).all(axis=1) & auto[1:] & auto[:-1]
    bounds = np.append(np.flatnonzero(~same), n)
    next_pos = pos_max.astype(np.int64) + 1
    resolved = pos.astype(np.int64)
    for start, end in pairwise(bounds):
        ids = seq_ids[offsets[start] : offsets[start + 1]]
        if auto[start]:
            resolved[start:end] = next_pos[ids[0]] + np.arange(end - start)
        next_pos[ids] = resolved[end - 1] + 1
    return resolved


def check_positions(
    pos: NDArray[np.int32],
    by_seq: BySequence,
    has_token: NDArray[np.bool_] | None,
    ranges: SeqRanges,
    *,
    coupled: bool,
) -> None:
    """Pure. Raises the first failure: continuity sequence by sequence, then coupling, then order.

    pos [n_rows] is section 0; has_token [n_rows] is asked for by the rules of M-RoPE only, None = not M-RoPE.
    """
    by_pos = by_seq.take(pos)
    step = np.zeros(0, np.int32) if by_seq.one_each else by_seq.steps(by_pos)
    backwards = len(step) > 0 and bool(step[step.argmin()] < 0)
    if has_token is not None:
        _check_mrope_start(by_seq, by_pos, has_token, ranges)
    elif backwards or _wrong_start(by_seq, by_pos, ranges).any() or (len(step) and step[step.argmax()] > 1):
        _check_continuous(by_seq, by_pos, step, ranges, backwards=backwards)
    if coupled:
        _check_coupled(by_seq, ranges)
    if backwards:
        _refuse_backwards(by_seq, by_pos, step)


def _refuse_backwards(by_seq: BySequence, pos: NDArray[np.int32], step: NDArray[np.int32]) -> None:
    """The first row, in batch order, that lies before its sequence's row before it."""
    bad = (step < 0).nonzero()[0] + 1
    i = int(bad[by_seq.row[bad].argmin()])
    row, seq_id, value, before = int(by_seq.row[i]), int(by_seq.seq[i]), int(pos[i]), int(pos[i - 1])
    raise PositionDecreasing(
        f"row {row}: position {value} of sequence {seq_id} comes after {before} (row {by_seq.row[i - 1]}); "
        "positions of a sequence must not decrease in batch order",
        row=row,
        seq_id=seq_id,
        value=value,
        limit=before,
    )


def _wrong_start(by_seq: BySequence, by_pos: NDArray[np.int32], ranges: SeqRanges) -> NDArray[np.bool_]:
    """[n_present] whether a sequence's first row does not follow what memory holds of it."""
    starts = by_seq.starts
    held = ranges.pos_max[by_seq.seq[starts]]
    wrong: NDArray[np.bool_] = (held >= 0) & (by_pos[starts] != held + 1)
    return wrong


def _check_continuous(
    by_seq: BySequence, pos: NDArray[np.int32], step: NDArray[np.int32], ranges: SeqRanges, *, backwards: bool
) -> None:
    """The smallest position follows the memory's last, and the distinct positions leave no gap."""
    row, starts = by_seq.row, by_seq.starts
    if backwards:
        order = np.lexsort((pos, by_seq.seq))
        pos, row = pos[order], row[order]
        step = by_seq.steps(pos)
    seqs = by_seq.seq[starts]
    held = ranges.pos_max[seqs]
    wrong_start = _wrong_start(by_seq, pos, ranges)
    gap_at = (step > 1).nonzero()[0] + 1
    if not wrong_start.any() and not len(gap_at):
        return
    group_of_gap = np.searchsorted(starts, gap_at[:1], side="right") - 1
    first_start = int(np.argmax(wrong_start)) if wrong_start.any() else len(starts)
    if not len(gap_at) or first_start <= group_of_gap[0]:
        i = int(starts[first_start])
        seq_id, last = int(seqs[first_start]), int(held[first_start])
        raise MemoryPosition(
            f"row {row[i]}: sequence {seq_id} starts at position {pos[i]}, but memory holds it up to {last}, "
            f"so it must continue at {last + 1}",
            row=int(row[i]),
            seq_id=seq_id,
            value=int(pos[i]),
            limit=last + 1,
        )
    i = int(gap_at[0])
    seq_id = int(by_seq.seq[i])
    raise PositionGap(
        f"row {row[i]}: sequence {seq_id} jumps from position {pos[i - 1]} to {pos[i]}; "
        "its positions in a batch must leave no gap",
        row=int(row[i]),
        seq_id=seq_id,
        value=int(pos[i]),
        limit=int(pos[i - 1]) + 1,
    )


def _check_mrope_start(
    by_seq: BySequence, pos: NDArray[np.int32], has_token: NDArray[np.bool_], ranges: SeqRanges
) -> None:
    """Jumps are allowed; token rows start after what memory holds, embedding rows may start at it."""
    held = ranges.pos_max[by_seq.seq]
    token = has_token[by_seq.row]
    bad = (held >= 0) & (pos < held + token)
    if not bad.any():
        return
    i = int(np.argmax(bad))
    row, seq_id, last, value = int(by_seq.row[i]), int(by_seq.seq[i]), int(held[i]), int(pos[i])
    if token[i]:
        raise MropeTokenPosition(
            f"row {row}: token at position {value} of sequence {seq_id}, but memory holds it up to {last}; "
            f"tokens must start at {last + 1} or later",
            row=row,
            seq_id=seq_id,
            value=value,
            limit=last + 1,
        )
    raise MropeEmbdPosition(
        f"row {row}: embedding at position {value} of sequence {seq_id}, but memory holds it up to {last}; "
        f"embeddings must start at {last} or later",
        row=row,
        seq_id=seq_id,
        value=value,
        limit=last,
    )


def _check_coupled(by_seq: BySequence, ranges: SeqRanges) -> None:
    """Each sequence of a shared row against the smallest of the row."""
    first = np.full(int(by_seq.row.max()) + 1, 0, np.int32)
    first[by_seq.row[::-1]] = by_seq.seq[::-1]  # sequences ascend, so the smallest is written last
    other = first[by_seq.row]
    lo, hi = ranges.pos_min, ranges.pos_max
    bad = ((lo[by_seq.seq] != lo[other]) | (hi[by_seq.seq] != hi[other])).nonzero()[0]
    if len(bad):
        i = int(bad[by_seq.row[bad].argmin()])
        a, b, row = int(other[i]), int(by_seq.seq[i]), int(by_seq.row[i])
        raise CoupledDiverged(
            f"row {row} is shared by sequences {a} and {b}, but memory holds p{lo[a]}..{hi[a]} of {a} "
            f"and p{lo[b]}..{hi[b]} of {b} (-1 = nothing)",
            row=row,
            seq_id=b,
            value=(int(lo[b]), int(hi[b])),
            limit=(int(lo[a]), int(hi[a])),
        )
