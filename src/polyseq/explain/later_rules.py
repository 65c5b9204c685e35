"""Advice on steps 3 to 6: cut, room, context, outputs. One rule per error, all pure."""

from __future__ import annotations

from polyseq import errors as e
from polyseq.explain.changes import Change, ChangeSetting, RemoveRange, RequestOutput
from polyseq.explain.room import changes_that_make_room
from polyseq.explain.situation import Situation, as_checked
from polyseq.split import Equal

# ---- 3, 4: cut and room --------------------------------------------------------------------------------


def split(error: e.SplitError, s: Situation) -> tuple[str, list[Change]]:
    strategy = s.strategy
    if strategy is None:
        return "the ubatch is too small for this cut; make n_ubatch larger", []
    least = strategy.n_keep_tail + 1 if isinstance(strategy, Equal) else 1
    return f"this cut needs ubatches of {least} rows or more", [ChangeSetting("n_ubatch", least)]


def coupled_sequences(error: e.CoupledSequences, s: Situation) -> tuple[str, list[Change]]:
    return "only one cache for all sequences can hold a row for several", [ChangeSetting("unified", True)]


def no_slot(error: e.NoSlot, s: Situation) -> tuple[str, list[Change]]:
    missing = error.needed - error.free
    why = (
        f"stream {error.stream} is {missing} cells short ({error.needed} needed, {error.free} of {error.n_cells} free)"
    )
    if s.batch is None or s.memory is None:
        return why, []
    checked = as_checked(s.batch, s.memory)
    n_ubatch = checked.n_tokens if s.n_ubatch is None else s.n_ubatch
    changes = list(changes_that_make_room(error, checked, s.memory, n_ubatch))
    if error.free == 0 and not any(isinstance(c, RemoveRange) for c in changes):
        why += "; no part of the batch fits there now"
    return why, changes


# ---- 5, 6: context and outputs -------------------------------------------------------------------------


def context(error: e.ContextError, s: Situation) -> tuple[str, list[Change]]:
    asked = {**error.settings, **(s.asked or {})}
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
    if asked.get("keep_layers"):
        return "keep only layers that the model has", [ChangeSetting("keep_layers", ())]
    return "the sizes do not go together; the message names the limit", []


def capability(error: e.CapabilityError, s: Situation) -> tuple[str, list[Change]]:
    if s.asked and s.asked.get("backend", "auto") != "auto":
        return "use a backend that is there", [ChangeSetting("backend", "auto")]
    return "ask for what the message says this model or context can give", []


def output(error: e.OutputError, s: Situation) -> tuple[str, list[Change]]:
    why = "results exist only for rows that asked for one (Outputs.rows lists them)"
    if s.batch is None or s.row is None:
        return why, []
    n = len(s.batch)
    if 0 <= s.row < n:
        return why, [RequestOutput(s.row)]
    return f"{why}; the batch has rows 0..{n - 1}, and outputs count -{int(s.batch.output.sum())}..-1 from the end", []
