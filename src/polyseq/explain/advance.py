"""Rows that nobody computes: placed in a memory and taken, so that it holds what it would after a decode.

Enters: a memory, and a sequence for each row. Leaves: the memory moved on, or `NoSlot` raised. Needs no model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyseq.batch import Batch, CheckedBatch, Limits, check
from polyseq.errors import NoSlot
from polyseq.memory import Memory, MemoryPlan


def rows_for(memory: Memory, seqs: NDArray[np.intp], output: bool | ArrayLike = False) -> CheckedBatch:
    """Pure. A row of each sequence named, in that order, at its next position."""
    batch = Batch()
    batch.extend(np.zeros(len(seqs), np.int32), seq=seqs, output=output)
    return check(batch, Limits(n_vocab=1, n_seq_max=memory.n_seq_max), memory.ranges)


def planned(memory: Memory, batch: CheckedBatch, n_ubatch: int) -> MemoryPlan[Any]:
    """Pure. All of a batch cut and placed. Raises `NoSlot`, and what the memory's `init_batch` raises."""
    found = memory.init_batch(batch, n_ubatch)
    if isinstance(found, NoSlot):
        raise found
    return found


def advance(memory: Memory, seqs: NDArray[np.intp]) -> None:
    """Changes the memory: it holds a row more for each sequence named, taken in that order. Raises `NoSlot`."""
    if not len(seqs):
        return
    plan = planned(memory, rows_for(memory, seqs), len(seqs))
    for ubatch, slot in zip(plan.ubatches, plan.slots, strict=True):
        memory.apply(ubatch, slot)
