"""Advice on steps 1 and 2: what to do about a batch that was refused by its check. One rule per error, all pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyseq import errors as e
from polyseq.batch import Batch
from polyseq.batch.seqset import MAX_SEQ
from polyseq.explain.changes import (
    Change,
    ChangeSetting,
    ContinueFrom,
    CopySequence,
    DropRows,
    RemoveRange,
    SetSequence,
    SortRows,
    SplitBatch,
    TruncateBatch,
)
from polyseq.explain.situation import Rule, Situation
from polyseq.memory import has_room, longest_start
from polyseq.split.spans import n_whole


def bad_seq_count(error: e.BadSeqCount, s: Situation) -> tuple[str, list[Change]]:
    value = error.value if isinstance(error.value, int) else 1
    return f"there can be 1 to {MAX_SEQ} sequences", [ChangeSetting("n_seq_max", min(max(value, 1), MAX_SEQ))]


def too_large(error: e.BatchTooLarge, s: Situation) -> tuple[str, list[Change]]:
    n, limit = error.value, error.limit
    assert isinstance(n, int) and isinstance(limit, int)
    why = f"one call takes {limit} rows (n_batch), these are {n}"
    n_fit = _rows_that_fit(s, n, limit)
    if n_fit is not None:
        return f"{why}, and memory has no room for all of them", [TruncateBatch(n_fit)] if n_fit else []
    calls = _calls(n, limit, None if s.batch is None else s.batch.span)
    changes: list[Change] = [SplitBatch(calls)] if 0 not in calls else []
    if s.trial is not None and n <= s.trial.settings.n_cells * s.trial.settings.n_stream:  # n_batch ends at n_ctx
        changes.append(ChangeSetting("n_batch", n))
    return why, changes


def _calls(n: int, limit: int, span: NDArray[np.int32] | None) -> tuple[int, ...]:
    """Pure. Rows of each of the calls that n rows come in, none of which ends inside a span; 0: one is too long."""
    calls: list[int] = []
    while (at := sum(calls)) < n and 0 not in calls:
        calls.append(n_whole(span, np.arange(at, min(at + limit + 1, n)), limit))
    return tuple(calls)


def _rows_that_fit(s: Situation, n: int, limit: int) -> int | None:
    """How many rows of one call fit, where memory has no room for all n; None where it has, or that is not known."""
    trial, checked = s.trial, s.checked
    if trial is None or checked is None or checked.n_tokens != n or trial.fits(checked):
        return None
    n_ubatch = trial.settings.n_ubatch
    n_fit = longest_start(checked, lambda part: has_room(trial.memory, part, n_ubatch), n_most=limit)
    return n_fit or None  # 0: rows that will be refused for another reason, once there are fewer


def content_mix(error: e.ContentMix, s: Situation) -> tuple[str, list[Change]]:
    changes: list[Change] = []
    content = None if s.batch is None else s.batch.content
    if 3 not in ((error.value, error.limit) if content is None else content):
        changes.append(ChangeSetting("allow_mixed", True))
    if content is not None:
        bounds = np.flatnonzero(np.diff(content, prepend=0xFF, append=0xFF))
        changes.append(SplitBatch(tuple(np.diff(bounds).tolist())))
    return "one call takes rows of one kind, unless tokens beside embeddings are allowed", changes


def bad_seq_id(error: e.BadSeqId, s: Situation) -> tuple[str, list[Change]]:
    value = error.value
    if isinstance(value, int) and 0 <= value < MAX_SEQ:
        return f"sequence ids end below n_seq_max ({error.limit})", [ChangeSetting("n_seq_max", value + 1)]
    assert error.row is not None
    return f"each row needs a sequence id from 0 to at most {MAX_SEQ - 1}", [SetSequence(error.row, 0)]


def negative_position(error: e.NegativePosition, s: Situation) -> tuple[str, list[Change]]:
    assert error.row is not None
    return "positions start at 0; left out, they continue the sequence", [ContinueFrom(error.row, None)]


def drop_row(why: str) -> Rule:
    return lambda error, s: (why, [] if error.row is None else [DropRows((error.row,))])


def bad_embedding(error: e.BadEmbedding, s: Situation) -> tuple[str, list[Change]]:
    if error.limit is not None:
        wide = " or ".join(map(str, error.limit)) if isinstance(error.limit, tuple) else error.limit
        return f"give rows that are {wide} wide, as the model's embeddings are", []
    assert error.row is not None
    return "NaN or infinity would spread through the model; mend the row", [DropRows((error.row,))]


def state_mix(error: e.StateMix, s: Situation) -> tuple[str, list[Change]]:
    assert error.row is not None
    return "rows with and without a hidden state need calls of their own", [TruncateBatch(error.row)]


def memory_position(error: e.MemoryPosition, s: Situation) -> tuple[str, list[Change]]:
    assert error.row is not None and error.seq_id is not None
    assert isinstance(error.value, int) and isinstance(error.limit, int)
    changes: list[Change] = [ContinueFrom(error.row, error.limit)]
    if error.value < error.limit:
        changes.append(RemoveRange(error.seq_id, error.value, -1))
    return f"sequence {error.seq_id} goes on at position {error.limit}", changes


def position_gap(error: e.PositionGap, s: Situation) -> tuple[str, list[Change]]:
    assert error.row is not None and isinstance(error.limit, int)
    return f"position {error.limit} of sequence {error.seq_id} is missing", [ContinueFrom(error.row, error.limit)]


def position_decreasing(error: e.PositionDecreasing, s: Situation) -> tuple[str, list[Change]]:
    assert error.seq_id is not None
    return "a sequence's rows come in the order of their positions", [SortRows(error.seq_id)]


def sequence_too_long(error: e.SequenceTooLong, s: Situation) -> tuple[str, list[Change]]:
    assert isinstance(error.value, int)
    why = f"all {error.value} tokens of sequence {error.seq_id} are computed at once"
    return why, [ChangeSetting("n_ubatch", error.value)]


def beyond_model(error: e.BeyondModel, s: Situation) -> tuple[str, list[Change]]:
    why = "shorten the text to the positions that the model has"
    if s.checked is None or not isinstance(error.limit, int):
        return why, []
    return why, [DropRows(tuple(np.flatnonzero(s.checked.pos[0] >= error.limit).tolist()))]


def shared_row(error: e.SharedRow, s: Situation) -> tuple[str, list[Change]]:
    return "hand the row in once for each of its sequences", []  # a text of each: no one change does it


def mrope_position(error: e.MropeTokenPosition | e.MropeEmbdPosition, s: Situation) -> tuple[str, list[Change]]:
    assert error.row is not None and error.seq_id is not None
    assert isinstance(error.value, int) and isinstance(error.limit, int)
    changes: list[Change] = [ContinueFrom(error.row, error.limit), RemoveRange(error.seq_id, error.value, -1)]
    return f"sequence {error.seq_id} goes on at position {error.limit} or later", changes


def coupled_diverged(error: e.CoupledDiverged, s: Situation) -> tuple[str, list[Change]]:
    """One of the two holds nothing, or starts later: elsewhere both could not continue at one position."""
    assert error.row is not None and error.seq_id is not None
    assert isinstance(error.value, tuple) and isinstance(error.limit, tuple)
    (lo_b, _), (lo_a, _) = error.value, error.limit
    why = "sequences that share a row must hold the same positions"
    if s.batch is None:
        return why, []
    b = error.seq_id
    a = _smallest_seq(s.batch, error.row)
    if lo_a < 0 or lo_b < 0:
        return why, [CopySequence(b, a) if lo_a < 0 else CopySequence(a, b)]
    return why, [RemoveRange(a, lo_a, lo_b) if lo_a < lo_b else RemoveRange(b, lo_b, lo_a)]


def _smallest_seq(batch: Batch, row: int) -> int:
    start = int(batch.seq_count[:row].sum())
    return int(batch.seq_ids[start : start + int(batch.seq_count[row])].min())
