"""What the nodes of one run share: the cache tensors, and what several nodes would compute alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.reference.cache import ReferenceCache

T = TypeVar("T")


class Run:
    """One run of a plan over one ubatch."""

    def __init__(self, cache: ReferenceCache | None) -> None:
        self._cache = cache
        self._shared: dict[Hashable, object] = {}

    @property
    def cache(self) -> ReferenceCache:
        """The cache tensors. Raises ValueError where the plan was made without."""
        if self._cache is None:
            raise ValueError("the graph reads or writes the cache, but its plan was made without cache tensors")
        return self._cache

    def states(self, il: int, name: str) -> NDArray[np.float32]:
        """The state cells of a recurrent layer, [n_cells, ...]."""
        return self.cache.states[il][name]

    def shared(self, key: Hashable, compute: Callable[[], T]) -> T:
        """What `compute` gives, computed by the first node that asks under this key."""
        if key not in self._shared:
            self._shared[key] = compute()
        return cast(T, self._shared[key])
