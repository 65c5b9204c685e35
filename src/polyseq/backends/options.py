"""What a context may ask of the backend that computes it, beside the sizes of its memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunOptions:
    """None: as the backend thinks best."""

    n_threads: int | None = None
    kv_type: str | None = None  # how numbers in the cache are kept: "f32", "bf16", "int8"


DEFAULTS = RunOptions()
