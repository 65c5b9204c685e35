"""Everything a memory is made from: what the model's layers keep, and how much room there is."""

from __future__ import annotations

from dataclasses import dataclass

from polyseq.batch.seqset import MAX_SEQ
from polyseq.errors import BadSeqCount, ContextError
from polyseq.memory.cache_layer import CacheLayer, KvLayer, RsLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """Sizes in effect. Raises `BadSeqCount`, `ContextError`."""

    layers: tuple[CacheLayer | None, ...]  # [n_layer] what each layer keeps
    n_cells: int  # of each stream, where every token is kept
    n_seq_max: int
    unified: bool  # one stream of cells for all sequences, not one for each
    n_ubatch: int
    n_pos: int = 1
    packed: bool = False  # rows of an ubatch need not be rectangular: what the backend can
    swa_full: bool = False  # the window part gets as many cells as the part that keeps every token
    n_rs_seq: int = 0  # how many positions back a recurrent state can go

    def __post_init__(self) -> None:
        if not 1 <= self.n_seq_max <= MAX_SEQ:
            raise BadSeqCount(
                f"n_seq_max is {self.n_seq_max}, it must be 1 to {MAX_SEQ}", value=self.n_seq_max, limit=MAX_SEQ
            )
        if self.n_cells < 1:
            raise ContextError(f"a cache of {self.n_cells} cells holds nothing; it must have at least 1")
        if self.n_rs_seq < 0:
            raise ContextError(f"n_rs_seq is {self.n_rs_seq}, it must be at least 0")

    @property
    def n_stream(self) -> int:
        """Streams of cells."""
        return 1 if self.unified else self.n_seq_max

    def kv_layers(self, *, window: bool) -> dict[int, CacheLayer]:
        """Pure. Layers (by il) that keep K and V of every token, or with `window` of the last ones."""
        return {il: a for il, a in enumerate(self.layers) if isinstance(a, KvLayer) and (a.n_swa > 0) == window}

    def rs_layers(self) -> dict[int, CacheLayer]:
        """Pure. Layers (by il) that keep a running state."""
        return {il: a for il, a in enumerate(self.layers) if isinstance(a, RsLayer)}
