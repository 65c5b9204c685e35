"""Metadata values with the type they must have.

Enters: GGUF metadata, which may say anything. Leaves: one value of the wanted type, or InvalidModelFile that names
the key, what was found and what was wanted.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import InvalidModelFile

Metadata = Mapping[str, object]


def text(metadata: Metadata, key: str) -> str | None:
    """Pure. A string, or None when the key is absent."""
    value = metadata.get(key)
    if value is None or isinstance(value, str):
        return value
    raise InvalidModelFile(f"{key} is a {type(value).__name__}, it must be a string")


def flag(metadata: Metadata, key: str, default: bool) -> bool:
    """Pure. A bool, or `default` when the key is absent."""
    value = metadata.get(key, default)
    if isinstance(value, bool):
        return value
    raise InvalidModelFile(f"{key} is a {type(value).__name__}, it must be a bool")


def texts(metadata: Metadata, key: str) -> list[str]:
    """Pure. A list of strings that must be there."""
    value = metadata.get(key)
    if value is None:
        raise InvalidModelFile(f"{key} is missing")
    if isinstance(value, list) and all(issubclass(kind, str) for kind in set(map(type, value))):
        return value
    raise InvalidModelFile(f"{key} is a {type(value).__name__}, it must be a list of strings")


def numbers(metadata: Metadata, key: str, n: int) -> NDArray[np.generic] | None:
    """Pure. `n` numbers as [n], or None when the key is absent."""
    value = metadata.get(key)
    if value is None:
        return None
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise InvalidModelFile(f"{key} is a {type(value).__name__}, it must be an array of numbers")
    if len(array) != n:
        raise InvalidModelFile(f"{key} has {len(array)} entries for {n} tokens")
    return array


def token_id(metadata: Metadata, key: str, n_vocab: int) -> int | None:
    """Pure. A token id inside the vocabulary, or None when the key is absent."""
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidModelFile(f"{key} is a {type(value).__name__}, it must be an integer")
    if not 0 <= value < n_vocab:
        raise InvalidModelFile(f"{key} is {value}, outside the vocabulary [0, {n_vocab})")
    return value
