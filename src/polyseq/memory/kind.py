"""One kind of memory, as the registry knows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polyseq.memory.cache_part import CachePart, PartName
from polyseq.memory.memory import Memory
from polyseq.memory.settings import MemorySettings


@dataclass(frozen=True, slots=True)
class Kind:
    """What it keeps, the cache tensors it needs for that, and how it is made. All pure."""

    name: str
    serves: tuple[frozenset[PartName], ...]  # for models whose layers keep just these, in any mixture
    parts: Callable[[MemorySettings], tuple[CachePart, ...]]
    make: Callable[[MemorySettings], Memory]
