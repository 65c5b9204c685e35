"""Which architecture class builds the graphs of a GGUF file, by its `general.architecture`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from polyseq.errors import UnsupportedModel
from polyseq.models.architecture import Architecture
from polyseq.models.llama import Llama

KNOWN: Mapping[str, type[Architecture]] = MappingProxyType({"llama": Llama})


def architecture(name: str) -> type[Architecture]:
    """Pure. The class for a `general.architecture`. Raises UnsupportedModel naming what is known."""
    if name not in KNOWN:
        raise UnsupportedModel(f"architecture {name!r} is not supported; known: {', '.join(KNOWN)}")
    return KNOWN[name]
