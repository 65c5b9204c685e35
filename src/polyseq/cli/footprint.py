"""What memory a context over a model would take, by arithmetic alone.

Enters: a model, the effective sizes of a context, and a backend. Leaves: bytes; nothing is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyseq.backends import RunOptions, backend
from polyseq.context_sizes import ContextSizes
from polyseq.memory import MemorySettings, cache_parts
from polyseq.model import Model


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of the parts that a context needs."""

    backend: str
    kv_type: str
    kv_bytes_per_cell: int  # keys and values of all layers
    kv_bytes: int  # of all cells
    weights_bytes: int  # as the backend packs them
    logits_bytes: int  # one output row per sequence

    @property
    def total_bytes(self) -> int:
        return self.kv_bytes + self.weights_bytes + self.logits_bytes


def footprint(model: Model, sizes: ContextSizes, *, backend_name: str, kv_type: str | None) -> Footprint:
    """Pure. What a context of `sizes` takes. Raises CapabilityError."""
    settings = MemorySettings(
        layers=model.architecture.cache_layers,
        n_cells=sizes.n_ctx_seq,
        n_seq_max=sizes.n_seq_max,
        unified=sizes.unified,
        n_ubatch=sizes.n_ubatch,
    )
    parts, computes = cache_parts(settings), backend(backend_name)
    room = model.loaded(computes).room(parts, RunOptions(kv_type=kv_type))
    return Footprint(
        backend=computes.name,
        kv_type=room.kv_type,
        kv_bytes_per_cell=-(-room.n_bytes_cells // (settings.n_stream * settings.n_cells)),
        kv_bytes=room.n_bytes_cells,
        weights_bytes=room.n_bytes_weights,
        # a model that keeps nothing gives embeddings
        logits_bytes=sizes.n_seq_max * model.architecture.hparams.n_vocab * 4 if parts else 0,
    )
