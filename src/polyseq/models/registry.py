"""Which architecture class builds the graphs of a GGUF file, by its `general.architecture`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from polyseq.errors import UnsupportedModel
from polyseq.models.architecture import Architecture
from polyseq.models.bert import Bert
from polyseq.models.gemma3 import Gemma3
from polyseq.models.lfm2 import Lfm2
from polyseq.models.llama import Llama
from polyseq.models.mamba import Mamba

KNOWN: Mapping[str, type[Architecture]] = MappingProxyType(
    {"llama": Llama, "gemma3": Gemma3, "mamba": Mamba, "lfm2": Lfm2, "bert": Bert}
)


def architecture(name: str) -> type[Architecture]:
    """Pure. The class for a `general.architecture`. Raises UnsupportedModel naming what is known."""
    if name not in KNOWN:
        raise UnsupportedModel(f"architecture {name!r} is not supported; known: {', '.join(KNOWN)}")
    return KNOWN[name]
