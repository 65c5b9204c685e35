"""One layer's share of a KV cache: what a model says and a backend makes room for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvLayer:
    """Sizes of what one cell holds for one layer."""

    n_head_kv: int
    n_embd_head_k: int
    n_embd_head_v: int
