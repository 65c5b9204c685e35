"""Plans kept by key, with counts of hits and misses and the reason of every miss.

Enters: a key, `Wanted`, which holds everything baked into a plan. Leaves: the plan for it.
Step 5, before compute. A plan serves every ubatch size, so a miss means that a field of the key changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import Generic, TypeVar

from polyseq.graph.wanted import Wanted

P = TypeVar("P")


class PlanCache(Generic[P]):
    """`get` builds on a miss; `hits`, `misses` and `reasons` say how well plans are used again."""

    def __init__(self, build: Callable[[Wanted], P]) -> None:
        self._build = build
        self._plans: dict[Wanted, P] = {}
        self.hits = 0
        self.misses = 0
        self.reasons: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._plans)

    def get(self, key: Wanted) -> P:
        """Changes the counts, and on a miss builds and keeps the plan. A build that raises leaves no trace."""
        if key in self._plans:
            self.hits += 1
            return self._plans[key]
        plan = self._build(key)
        self.misses += 1
        self.reasons[self._reason(key)] += 1
        self._plans[key] = plan
        return plan

    def _reason(self, key: Wanted) -> str:
        """Pure. Every field in which `key` differs from the nearest plan kept, the latest of equally near ones."""
        differences = [_differences(known, key) for known in reversed(self._plans)]
        return "; ".join(sorted(differences, key=len)[0]) if differences else "first plan"


def _differences(old: Wanted, new: Wanted) -> list[str]:
    pairs = [(f.name, getattr(old, f.name), getattr(new, f.name)) for f in fields(new)]
    return [f"{name}: {a} -> {b}" for name, a, b in pairs if a != b]
