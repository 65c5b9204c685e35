"""How much of a sequence's beginning can be gone on from, and what stands in the way of more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reusable:
    """`n` of the positions `[0, wanted)`: after `rm(seq_id, n, -1)` a decode at position n is right."""

    n: int
    why: str  # not all that was wanted; empty: all


def of_wanted(n: int, wanted: int, why: str) -> Reusable:
    """Pure. The reason is dropped where nothing is missing."""
    return Reusable(n, "" if n == wanted else why)
