"""One kind of memory, as the registry knows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polyseq.memory.cache_part import CachePart
from polyseq.memory.memory import Memory
from polyseq.memory.settings import MemorySettings


@dataclass(frozen=True, slots=True)
class Kind:
    """Whether it serves a model, which cache tensors it needs, and how it is made. All pure."""

    name: str
    serves: Callable[[MemorySettings], bool]
    parts: Callable[[MemorySettings], tuple[CachePart, ...]]
    make: Callable[[MemorySettings], Memory]
