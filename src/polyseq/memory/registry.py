"""Which kinds of memory there are. A further kind is one file and one name here; it is imported when it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

from polyseq.errors import ContextError
from polyseq.memory.cache_part import CachePart
from polyseq.memory.kind import Example, Kind
from polyseq.memory.memory import Memory
from polyseq.memory.settings import MemorySettings


def _in(module: str) -> Callable[[], Kind]:
    def kind() -> Kind:
        found: Kind = import_module(f"polyseq.memory.{module}").KIND
        return found

    return kind


KINDS = tuple(map(_in, ("full", "window_pair", "recurrent", "hybrid", "no_memory")))


def kinds() -> Iterator[Kind]:
    """Pure. All kinds, in the order in which they are asked."""
    return (kind() for kind in KINDS)


def kind_of(settings: MemorySettings) -> Kind:
    """Pure. The kind that serves these layers. Raises `ContextError` where none does."""
    for kind in kinds():
        if settings.keeps in kind.serves:
            return kind
    raise ContextError(f"no memory keeps {' and '.join(sorted(settings.keeps))}")


def cache_parts(settings: MemorySettings) -> tuple[CachePart, ...]:
    """Pure. The cache tensors that the memory will need; takes no room itself."""
    return kind_of(settings).parts(settings)


def make_memory(settings: MemorySettings) -> Memory:
    """Pure. An empty memory. Its metadata takes a few bytes per cell."""
    memory = kind_of(settings).make(settings)
    if settings.strategy is not None:
        memory.strategy = settings.strategy
    return memory


def examples() -> dict[str, Example]:
    """Pure. By name, the memories of every kind that a plan without a model can be made on."""
    return {example.name: example for kind in kinds() for example in kind.examples}
