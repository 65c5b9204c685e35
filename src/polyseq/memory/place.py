"""Room for all of a batch, whatever the memory has to give up for it; or a refusal that says what would fit."""

from __future__ import annotations

from typing import Any

from polyseq.batch.checked import CheckedBatch
from polyseq.errors import NoSlot
from polyseq.memory.fit import longest_start
from polyseq.memory.memory import Memory
from polyseq.memory.plan import MemoryPlan
from polyseq.memory.settings import MemorySettings
from polyseq.memory.trial import Trial, has_room


def place(memory: Memory, settings: MemorySettings, batch: CheckedBatch) -> MemoryPlan[Any]:
    """Pure. All ubatches of a batch with their slots. Raises `NoSlot` and what the memory's `init_batch` raises."""
    n_ubatch = settings.n_ubatch
    plan = memory.init_batch(batch, n_ubatch)
    if not isinstance(plan, NoSlot):
        return plan
    again = memory.retry_batch(batch, n_ubatch)
    if again is not None:
        return again
    n_fit = longest_start(batch, lambda part: has_room(memory, part, n_ubatch), n_most=batch.n_tokens - 1)
    raise plan.with_fit(n_fit, None if n_fit else Trial(memory, settings).least_n_cells(batch))
