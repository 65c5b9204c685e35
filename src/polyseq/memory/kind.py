"""One kind of memory, as the registry knows it; and the memories of that kind that need no model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from polyseq.memory.cache_layer import CacheLayer, KvLayer, RsLayer
from polyseq.memory.cache_part import CachePart, PartName
from polyseq.memory.memory import Memory
from polyseq.memory.settings import MemorySettings
from polyseq.split import Strategy

# What a layer keeps where no model says: how much of it does not matter to a plan.
SOME_KV = KvLayer(n_head_kv=1, n_embd_head_k=1, n_embd_head_v=1)
SOME_WINDOW = replace(SOME_KV, n_swa=512)
SOME_STATE = RsLayer((("state", (1,)),))


@dataclass(frozen=True, slots=True)
class Example:
    """A memory to plan on without a model, under the name that `polyseq plan --memory` takes."""

    name: str
    layers: tuple[CacheLayer | None, ...]
    cuts: tuple[Strategy, ...]  # those it can be asked for; the first is its own choice
    unified: bool = True

    @property
    def n_swa(self) -> int:
        """Positions that a row of a windowed layer sees; 0: no layer has a window."""
        return max((layer.n_swa for layer in self.layers if isinstance(layer, KvLayer)), default=0)

    def with_window(self, n_swa: int) -> Example:
        """Pure. The same with a window of that many positions, where there is one."""

        def widened(layer: CacheLayer | None) -> CacheLayer | None:
            return replace(layer, n_swa=n_swa) if isinstance(layer, KvLayer) and layer.n_swa else layer

        return replace(self, layers=tuple(map(widened, self.layers)))


@dataclass(frozen=True, slots=True)
class Kind:
    """What it keeps, the cache tensors it needs for that, and how it is made. All pure."""

    name: str
    serves: tuple[frozenset[PartName], ...]  # for models whose layers keep just these, in any mixture
    parts: Callable[[MemorySettings], tuple[CachePart, ...]]
    make: Callable[[MemorySettings], Memory]
    examples: tuple[Example, ...]
