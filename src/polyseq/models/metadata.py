"""Typed reading of GGUF metadata under one architecture's prefix.

Enters: a file's metadata, as hostile as files can be. Leaves: checked Python values. Every refusal names the key
and what was found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from polyseq.errors import InvalidModelFile, UnsupportedModel


class Metadata:
    """`metadata[f"{prefix}.{key}"]` as what it should be."""

    def __init__(self, metadata: Mapping[str, object], prefix: str) -> None:
        self._metadata = metadata
        self._prefix = prefix

    def name(self, key: str) -> str:
        """Pure. The key's full name."""
        return f"{self._prefix}.{key}"

    def has(self, key: str) -> bool:
        """Pure. Whether the file has the key."""
        return self.name(key) in self._metadata

    def count(self, key: str, default: int | None = None, *, at_most: int) -> int:
        """Pure. A whole number from 1 to `at_most`, or an array that repeats one number for every layer.

        Raises InvalidModelFile where it is missing (without a default), no whole number or out of range, and
        UnsupportedModel where it differs from layer to layer.
        """
        value = self._value(key, default)
        if isinstance(value, list | tuple | np.ndarray):
            distinct = list(dict.fromkeys(np.asarray(value).ravel().tolist()))
            if len(distinct) != 1:
                raise UnsupportedModel(f"{self.name(key)} differs between layers: {distinct[:8]}")
            value = distinct[0]
        return self._whole(key, value, 1, at_most)

    def counts(self, key: str, n_layer: int, *, at_most: int) -> tuple[int, ...]:
        """Pure. [n_layer] whole numbers from 0 to `at_most`, one for each layer or one for all.

        Raises InvalidModelFile where the key is missing, or has another length or such a value.
        """
        value = self._value(key, None)
        if not isinstance(value, list | tuple | np.ndarray):
            return (self._whole(key, value, 0, at_most),) * n_layer
        values = np.asarray(value).ravel().tolist()
        if len(values) != n_layer:
            raise InvalidModelFile(f"{self.name(key)} has {len(values)} values for {n_layer} layers")
        return tuple(self._whole(key, v, 0, at_most) for v in values)

    def flags(self, key: str, n_layer: int) -> tuple[bool, ...] | None:
        """Pure. [n_layer] flags, None where the value is no array. Raises InvalidModelFile for another length."""
        value = self._metadata.get(self.name(key))
        if not isinstance(value, list | tuple | np.ndarray):
            return None
        if len(value) != n_layer:
            raise InvalidModelFile(f"{self.name(key)} has {len(value)} values for {n_layer} layers")
        return tuple(bool(v) for v in value)

    def tokens(self) -> Sequence[object] | None:
        """Pure. The vocabulary's pieces, None where the file has none."""
        value = self._metadata.get("tokenizer.ggml.tokens")
        if value is None or isinstance(value, list | tuple | np.ndarray):
            return value  # type: ignore[return-value]
        raise InvalidModelFile(f"tokenizer.ggml.tokens is {value!r}, wanted an array")

    def positive(self, key: str, default: float | None = None) -> float:
        """Pure. A finite number above 0. Raises InvalidModelFile where it is missing (without a default) or not."""
        value = self._value(key, default)
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not number or not math.isfinite(float(value)) or float(value) <= 0:  # type: ignore[arg-type]
            raise InvalidModelFile(f"{self.name(key)} is {value!r}, wanted a finite number above 0")
        return float(value)  # type: ignore[arg-type]

    def text(self, key: str) -> str:
        """Pure. The value as text. Raises InvalidModelFile where it is missing."""
        return str(self._value(key, None))

    def only(self, key: str, *supported: object) -> None:
        """Pure. Raises UnsupportedModel if the key is there with a value that is none of `supported`."""
        value = self._metadata.get(self.name(key))
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if value is not None and value not in supported:
            raise UnsupportedModel(f"{self.name(key)} is {value!r}; supported: {', '.join(map(repr, supported))}")

    def _whole(self, key: str, value: object, least: int, most: int) -> int:
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or not least <= value <= most:
            raise InvalidModelFile(f"{self.name(key)} is {value!r}, wanted a whole number from {least} to {most}")
        return int(value)

    def _value(self, key: str, default: float | None) -> object:
        value = self._metadata.get(self.name(key), default)
        if value is None:
            raise InvalidModelFile(f"metadata key {self.name(key)} is missing")
        return value
