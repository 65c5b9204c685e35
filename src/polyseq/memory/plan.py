"""Step 4, the answer: all of a batch cut and placed, and nothing written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from polyseq.split.ubatch import Ubatch

S = TypeVar("S", covariant=True)


@dataclass(frozen=True, slots=True)
class MemoryPlan(Generic[S]):
    """Ubatches and the slot of each, in the order of computation."""

    ubatches: tuple[Ubatch, ...]
    slots: tuple[S, ...]
