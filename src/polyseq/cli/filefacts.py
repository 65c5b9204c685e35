"""What a model file says about itself.

Enters: an open file or folder. Leaves: counts, a histogram of the stored types, metadata with long arrays
shortened. Needs no architecture, so it works for files that polyseq does not run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polyseq.weights import GgufFile
from polyseq.weights.hf_folder import HfFolder

_SHOWN_ITEMS = 6
_SHOWN_CHARS = 400


@dataclass(frozen=True, slots=True)
class TypeShare:
    """How much of a file is stored as one type."""

    qtype: str
    n_tensors: int
    n_params: int
    n_bytes: int


def type_shares(file: GgufFile | HfFolder) -> list[TypeShare]:
    """Pure. The stored types, the largest share first."""
    shares: dict[str, TypeShare] = {}
    for info in file.tensors.values():
        name = info.qtype.name
        old = shares.get(name, TypeShare(name, 0, 0, 0))
        shares[name] = TypeShare(name, old.n_tensors + 1, old.n_params + info.n_elements, old.n_bytes + info.n_bytes)
    return sorted(shares.values(), key=lambda share: -share.n_bytes)


def short_metadata(metadata: Mapping[str, object]) -> dict[str, object]:
    """Pure. Every key; long arrays become their length and first items, long texts are cut."""
    return {key: _short(value) for key, value in metadata.items()}


def _short(value: object) -> object:
    if isinstance(value, str):
        return value if len(value) <= _SHOWN_CHARS else f"{value[:_SHOWN_CHARS]}… ({len(value)} characters)"
    if isinstance(value, np.ndarray | list):
        items = [_short(item) for item in value[:_SHOWN_ITEMS]]
        return items if len(value) <= _SHOWN_ITEMS else {"n_items": len(value), "first": items}
    if isinstance(value, np.generic):
        return _short(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    return value


def stored_bytes(path: Path) -> int:
    """Pure. Bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(file.stat().st_size for file in files)
