"""One stretch of memory for all values of a run: places are used again once nobody reads what is there.

Enters: for each buffer its size and the first and last group that touches it. Leaves: offsets, no two buffers in one
place at the same time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer that is touched by groups `first` to `last`."""

    first: int
    last: int
    n_bytes: int


def offsets(lifetimes: Mapping[K, Lifetime]) -> tuple[dict[K, int], int]:
    """Pure. The offset of each buffer, a multiple of a cache line, and the bytes of all together.

    Largest first, each in the lowest gap between those it meets.
    """
    placed: list[tuple[int, int, Lifetime]] = []  # offset, end
    found: dict[K, int] = {}
    for key, life in sorted(lifetimes.items(), key=lambda item: -item[1].n_bytes):
        met = sorted((at, end) for at, end, other in placed if other.first <= life.last and life.first <= other.last)
        offset = 0
        for at, end in met:
            if offset + life.n_bytes <= at:
                break
            offset = max(offset, end)
        end = offset + -(-life.n_bytes // LINE_BYTES) * LINE_BYTES
        placed.append((offset, end, life))
        found[key] = offset
    return found, max((end for _, end, _ in placed), default=0)
