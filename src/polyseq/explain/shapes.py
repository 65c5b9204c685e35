"""What the cost of an ubatch depends on, in a few numbers.

Enters: an ubatch that has just been applied to a memory. Leaves: an `UbatchShape`. Needs no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polyseq.memory import Memory, MemoryPlan
from polyseq.split import Ubatch


@dataclass(frozen=True, slots=True)
class UbatchShape:
    """Counts over one ubatch."""

    n_tokens: int
    n_outputs: int
    n_visible: int  # pairs of a row and a cell it sees
    n_hidden: int  # pairs of a row and a cell between those that the ubatch sees, which the row does not see
    n_read: int  # cells whose K and V are read, over all streams
    n_seqs: int  # distinct sequences
    unified: bool  # that share one stream


def shape_of(memory: Memory, ubatch: Ubatch, slot: Any) -> UbatchShape:
    """Pure. Of an ubatch whose slot has been applied; a row sees its sequence's positions from 0 to its own."""
    view = memory.views(ubatch, slot).kv
    if view is None:  # no cells are read
        n_outputs = int(np.count_nonzero(ubatch.output))
        return UbatchShape(ubatch.n_tokens, n_outputs, 0, 0, 0, ubatch.n_seqs_unq, unified=False)
    span = view.n_kv
    if view.members is not None:
        seen = np.flatnonzero(view.members.any(axis=0))
        span = int(seen[-1] - seen[0]) + 1
    n_visible = int(ubatch.pos[0].sum(dtype=np.int64)) + ubatch.n_tokens
    return UbatchShape(
        n_tokens=ubatch.n_tokens,
        n_outputs=int(np.count_nonzero(ubatch.output)),
        n_visible=n_visible,
        n_hidden=max(ubatch.n_tokens * span - n_visible, 0),
        n_read=span * len(view.streams),
        n_seqs=ubatch.n_seqs_unq,
        unified=view.members is not None,
    )


def apply_plan(memory: Memory, plan: MemoryPlan[Any]) -> tuple[UbatchShape, ...]:
    """Changes the memory: all ubatches take their slots, as in a decode. The shape of each."""
    shapes = []
    for ubatch, slot in zip(plan.ubatches, plan.slots, strict=True):
        memory.apply(ubatch, slot)
        shapes.append(shape_of(memory, ubatch, slot))
    return tuple(shapes)


def shapes_of(memory: Memory, plan: MemoryPlan[Any]) -> tuple[UbatchShape, ...]:
    """Pure (what it applies it takes back). The shapes of a plan that is not yet applied."""
    mark = memory.mark()
    try:
        return apply_plan(memory, plan)
    finally:
        memory.undo(mark, plan.slots)
