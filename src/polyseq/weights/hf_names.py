"""Which GGUF name a Hugging Face tensor has, by the `gguf` package's own map.

Enters: tensor names of a file. Leaves: GGUF names, so that an architecture reads both kinds of files alike.
"""

from __future__ import annotations

from collections.abc import Iterable

from gguf.constants import MODEL_ARCH
from gguf.tensor_mapping import get_tensor_name_map

from polyseq.errors import InvalidModelFile

_SUFFIXES = (".weight", ".bias")
_PREFIX = "bert."  # in front of everything where the model carries a head
_POOLER, _CLASSIFIER = "pooler.dense", "classifier"


def bert_names(names: Iterable[str], n_layer: int) -> dict[str, str]:
    """Pure. GGUF name -> name in the file, without what no graph reads (stored position numbers, the pretraining head).

    A classifier reads the pooler: the two are GGUF's `cls` and `cls.output`. The map knows no pooler, and without a
    classifier nothing reads it. Raises InvalidModelFile for a tensor that has no place in the architecture.
    """
    known = get_tensor_name_map(MODEL_ARCH.BERT, n_layer)
    bare = {name.removeprefix(_PREFIX): name for name in names}
    ranks = f"{_CLASSIFIER}.weight" in bare
    heads = {_POOLER: "cls", _CLASSIFIER: "cls.output"} if ranks else {}
    found: dict[str, str] = {}
    for short, name in bare.items():
        stem, _, suffix = short.rpartition(".")
        if short == "embeddings.position_ids" or short.startswith("cls.") or (stem == _POOLER and not ranks):
            continue
        mapped = f"{heads[stem]}.{suffix}" if stem in heads else known.get_name(short, try_suffixes=_SUFFIXES)
        if mapped is None:
            raise InvalidModelFile(f"tensor {name!r} has no place in a bert of {n_layer} layers")
        found[mapped] = name
    return found
