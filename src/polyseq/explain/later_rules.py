"""Advice on steps 3 to 6: cut, room, context, outputs. One rule per error, all pure."""

from __future__ import annotations

import numpy as np

from polyseq import errors as e
from polyseq.explain.changes import (
    CallAgain,
    Change,
    ChangeSetting,
    DropRows,
    RemoveRange,
    RequestOutput,
    TruncateBatch,
    TruncateSequences,
)
from polyseq.explain.room import changes_that_make_room
from polyseq.explain.situation import Situation

# ---- 3, 4: cut and room --------------------------------------------------------------------------------


def split(error: e.SplitError, s: Situation) -> tuple[str, list[Change]]:
    if error.least is None:
        return "the ubatch is too small for this cut; make n_ubatch larger", []
    return f"this cut needs ubatches of {error.least} rows or more", [ChangeSetting("n_ubatch", error.least)]


def coupled_sequences(error: e.CoupledSequences, s: Situation) -> tuple[str, list[Change]]:
    return "only one cache for all sequences can hold a row for several", [ChangeSetting("unified", True)]


def no_slot(error: e.NoSlot, s: Situation) -> tuple[str, list[Change]]:
    missing = error.needed - error.free
    why = (
        f"stream {error.stream} is {missing} cells short ({error.needed} needed, {error.free} of {error.n_cells} free)"
    )
    checked = s.checked
    if s.trial is None or checked is None:
        return why, []
    if s.trial.fits(checked):
        return "there is room by now", [CallAgain()]
    changes = list(changes_that_make_room(error, checked, s.trial))
    if not any(isinstance(c, TruncateBatch | TruncateSequences) for c in changes):
        why += "; no part of the batch fits there now"
    return why, changes


def saved_state(error: e.SavedStateError, s: Situation) -> tuple[str, list[Change]]:
    if error.seq_id is not None:
        return "a sequence is restored where nothing is held", [RemoveRange(error.seq_id, -1, -1)]
    return "nothing changed; save again with this model, backend and kv_type", []


# ---- 5, 6: context and outputs -------------------------------------------------------------------------


def context(error: e.ContextError, s: Situation) -> tuple[str, list[Change]]:
    asked = {**error.settings, **(s.asked or {})}
    for name, natural in (("n_seq_max", 1), ("n_ctx", 0), ("n_batch", None), ("n_ubatch", None)):
        if isinstance(asked.get(name), bool) or not hasattr(asked.get(name, 0) or 0, "__index__"):
            return f"{name} is a whole number", [ChangeSetting(name, natural)]
    for name, least, natural in (("n_ctx", 0, 0), ("n_batch", 1, None), ("n_ubatch", 0, None)):
        value = asked.get(name)
        if value is not None and value < least:
            return f"{name} is at least {least}", [ChangeSetting(name, natural)]
    n_ctx, n_seq_max = asked.get("n_ctx", 0), asked.get("n_seq_max", 1)
    if 0 < n_ctx < n_seq_max and not asked.get("unified", False):
        changes = [
            ChangeSetting("unified", True),
            ChangeSetting("n_ctx", n_seq_max),
            ChangeSetting("n_seq_max", n_ctx),
        ]
        return "each sequence needs a cell at least", list(changes)
    n_rs_seq = asked.get("n_rs_seq", 0)
    if n_rs_seq < 0:
        return "a state goes back 0 positions or more", [ChangeSetting("n_rs_seq", 0)]
    if n_rs_seq:
        enough = [ChangeSetting("n_ubatch", 2 + n_rs_seq), ChangeSetting("n_rs_seq", 0)]
        return "the rows that a state can go back over come together, and one more", list(enough)
    if "on_error" in error.settings:
        return "a call that fails is taken back, or its finished ubatches stay", [ChangeSetting("on_error", "undo")]
    if asked.get("keep_layers"):
        return "keep only layers that the model has", [ChangeSetting("keep_layers", ())]
    return "the sizes do not go together; the message names the limit", []


def capability(error: e.CapabilityError, s: Situation) -> tuple[str, list[Change]]:
    if error.remedy:
        return "a context that was made for it can give it", [ChangeSetting(n, v) for n, v in error.remedy.items()]
    return "ask for what the message says this model or context can give", []


def aborted(error: e.Aborted, s: Situation) -> tuple[str, list[Change]]:
    return "the memory is as before the call", [CallAgain()]


def not_finite(error: e.NotFinite, s: Situation) -> tuple[str, list[Change]]:
    return "look for NaN or infinity in the weights; no other call or setting mends them", []


def partly_decoded(error: e.PartlyDecoded, s: Situation) -> tuple[str, list[Change]]:
    """What was kept is held, so that the rows after it go on from there."""
    why = "go on after the positions that were kept; the cause is in __cause__"
    if s.batch is None:
        return why, []
    starts = np.cumsum(s.batch.seq_count) - s.batch.seq_count
    first_seq = s.batch.seq_ids[starts] if len(s.batch.seq_ids) else np.zeros(len(s.batch), np.int32)
    kept: list[int] = []
    for seq_id, (first, last) in error.kept.items():
        kept += np.flatnonzero(first_seq == seq_id)[: last - first + 1].tolist()
    return why, [DropRows(tuple(sorted(kept)))]


def output(error: e.OutputError, s: Situation) -> tuple[str, list[Change]]:
    why = "results exist only for rows that asked for one (Outputs.rows lists them)"
    if error.row is None:
        return why, []
    if 0 <= error.row < error.n_rows:
        return why, [RequestOutput(error.row)]
    return f"{why}; the batch has rows 0..{error.n_rows - 1}, and outputs count -{error.n_outputs}..-1 from the end", []
