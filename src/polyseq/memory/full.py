"""The kind for models whose every layer keeps K and V of every token: one `KvCache`."""

from __future__ import annotations

from polyseq.memory.cache_part import CachePart
from polyseq.memory.kind import SOME_KV, Example, Kind
from polyseq.memory.kv_cache import KvCache
from polyseq.memory.settings import MemorySettings
from polyseq.split import Equal, Packed, Seq, Simple


def _parts(s: MemorySettings) -> tuple[CachePart, ...]:
    return (CachePart("kv", s.n_stream, s.n_cells, s.layers_in("kv")),)


def full_cache(s: MemorySettings) -> KvCache:
    """Pure. An empty cache for the layers that keep every token."""
    return KvCache(
        n_cells=s.n_cells,
        n_seq_max=s.n_seq_max,
        unified=s.unified,
        n_pos=s.n_pos,
        packed=s.packed,
        embeddings=s.embeddings,
        layers=s.layers_in("kv"),
    )


KIND = Kind(
    "kv",
    (frozenset({"kv"}),),
    _parts,
    full_cache,
    (
        Example("unified", (SOME_KV,), (Simple(), Equal(), Seq())),
        Example("streams", (SOME_KV,), (Equal(sequential=True), Packed(), Seq()), unified=False),
    ),
)
