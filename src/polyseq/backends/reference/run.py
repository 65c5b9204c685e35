"""What the nodes of one run share: the cache tensors, and what several nodes would compute alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar, cast

from polyseq.backends.reference.kv import ReferenceKv

T = TypeVar("T")


class Run:
    """One run of a plan over one ubatch."""

    def __init__(self, kv: ReferenceKv | None) -> None:
        self._kv = kv
        self._shared: dict[Hashable, object] = {}

    @property
    def kv(self) -> ReferenceKv:
        """The cache tensors. Raises ValueError where the plan was made without."""
        if self._kv is None:
            raise ValueError("the graph reads or writes the cache, but its plan was made without cache tensors")
        return self._kv

    def shared(self, key: Hashable, compute: Callable[[], T]) -> T:
        """What `compute` gives, computed by the first node that asks under this key."""
        if key not in self._shared:
            self._shared[key] = compute()
        return cast(T, self._shared[key])
