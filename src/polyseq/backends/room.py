"""What a model and its cells would take on a backend, by arithmetic alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes, once all is in use; nothing has been allocated."""

    kv_type: str  # how K and V would be kept
    n_bytes_weights: int  # as packed
    n_bytes_cells: int  # as `CacheTensors.n_bytes` would say
