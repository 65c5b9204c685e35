"""What memory a context over a model would take, by arithmetic alone.

Enters: an architecture's sizes and the effective sizes of a context. Leaves: bytes; nothing is allocated. They are
those of the reference backend, which keeps everything in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyseq.context_sizes import ContextSizes
from polyseq.memory import MemorySettings, cache_parts
from polyseq.models import Architecture

_F32 = 4


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of the parts that a context needs."""

    kv_bytes_per_cell: int  # keys and values of all layers
    kv_bytes: int  # of all cells
    weights_bytes: int  # every parameter as float32
    logits_bytes: int  # one output row per sequence

    @property
    def total_bytes(self) -> int:
        return self.kv_bytes + self.weights_bytes + self.logits_bytes


def footprint(architecture: Architecture, n_params: int, sizes: ContextSizes) -> Footprint:
    """Pure. What a context of `sizes` takes."""
    settings = MemorySettings(
        layers=architecture.cache_layers,
        n_cells=sizes.n_ctx_seq,
        n_seq_max=sizes.n_seq_max,
        unified=sizes.unified,
        n_ubatch=sizes.n_ubatch,
    )
    parts = cache_parts(settings)
    return Footprint(
        kv_bytes_per_cell=sum(_F32 * part.n_values_per_cell for part in parts),
        kv_bytes=sum(_F32 * part.n_values for part in parts),
        weights_bytes=n_params * _F32,
        # a model that keeps nothing gives embeddings
        logits_bytes=sizes.n_seq_max * architecture.hparams.n_vocab * _F32 if parts else 0,
    )
