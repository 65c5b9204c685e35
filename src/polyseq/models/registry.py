"""Which architecture builds the graphs of a GGUF file, by its `general.architecture`. A further one is one file of that
name and one name here; it is imported when a file asks for it.
"""

from __future__ import annotations

from importlib import import_module

from polyseq.errors import UnsupportedModel
from polyseq.models.architecture import Architecture

KNOWN = ("llama", "gemma3", "mamba", "lfm2", "bert")  # each a module with an `ARCHITECTURE`


def architecture(name: str) -> type[Architecture]:
    """Pure. The class for a `general.architecture`. Raises UnsupportedModel naming what is known."""
    if name not in KNOWN:
        raise UnsupportedModel(f"architecture {name!r} is not supported; known: {', '.join(KNOWN)}")
    found: type[Architecture] = import_module(f"polyseq.models.{name}").ARCHITECTURE
    return found
