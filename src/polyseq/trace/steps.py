"""The steps of a call as the watch saw them: when each began and ended, and what came of it.

Enters: a step. Leaves: its event.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polyseq.batch import CheckedBatch
from polyseq.memory import MemoryPlan, Slot
from polyseq.split import Ubatch
from polyseq.trace.events import Checked, Computed, Event, Placed, PlacedUbatch, Settled

Step = tuple[int, int, Any]  # (began, ended, what came of it)
Paid = tuple[tuple[tuple[int, int], ...], int]  # (copied streams, how many cells were rotated)

_NONE = np.zeros(0, np.intp)
NO_CELLS = Slot(_NONE, _NONE, _NONE)
N_BEFORE = 3  # steps before the first ubatch


def event_of(i_call: int, i: int, step: Step) -> Event:
    """Pure. Of step i: rows checked, dues settled, all placed, then one ubatch after the other."""
    began, ended, what = step
    when = i_call, began, ended - began
    if i == 0:
        rows: CheckedBatch = what
        return Checked(*when, rows.token, rows.pos, rows.seq_ids, rows.seq_offsets, rows.output, rows.span)
    if i == 1:
        return Settled(*when, *what)
    if i == 2:
        plan: MemoryPlan[Any] = what
        return Placed(*when, tuple(map(_placed, plan.ubatches, plan.slots)))
    return Computed(i_call, i - N_BEFORE, began, *laps(step))


def laps(step: Step) -> tuple[Any, ...]:
    """Pure. Of an ubatch: the fields of `Computed` from `apply_ns` on."""
    began, ended, ((applied, planned, computed), miss, n_outputs) = step
    return applied - began, planned - applied, miss, computed - planned, ended - computed, n_outputs


def _placed(ubatch: Ubatch, slot: Any) -> PlacedUbatch:
    cells = slot.kv or NO_CELLS
    return PlacedUbatch(
        n_seqs=ubatch.n_seqs,
        n_seq_tokens=ubatch.n_seq_tokens,
        reason=ubatch.reason,
        rows=ubatch.batch_idxs,
        streams=cells.streams,
        row_stream=cells.row_stream,
        cells=cells.cells,
    )
