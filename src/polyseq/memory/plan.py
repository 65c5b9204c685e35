"""Step 4, the answer: all of a batch cut and placed, and nothing written."""

from __future__ import annotations

from dataclasses import dataclass

from polyseq.memory.slot import Slot
from polyseq.split.ubatch import Ubatch


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Ubatches and the slot of each, in the order of computation."""

    ubatches: tuple[Ubatch, ...]
    slots: tuple[Slot, ...]
