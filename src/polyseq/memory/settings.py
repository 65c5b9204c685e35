"""Everything a memory is made from: what the model's layers keep, and how much room there is."""

from __future__ import annotations

from dataclasses import dataclass

from polyseq.batch.seqset import MAX_SEQ
from polyseq.errors import BadSeqCount, ContextError
from polyseq.memory.cache_layer import CacheLayer, PartName
from polyseq.split import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """Sizes in effect. Raises `BadSeqCount`, `ContextError`."""

    layers: tuple[CacheLayer | None, ...]  # [n_layer] what each layer keeps
    n_cells: int  # of each stream, where every token is kept
    n_seq_max: int
    unified: bool  # one stream of cells for all sequences, not one for each
    n_ubatch: int
    n_pos: int = 1
    embeddings: bool = False  # sequences become one row each, so that their rows must come together
    packed: bool = False  # rows of an ubatch need not be rectangular: what the backend can
    swa_full: bool = False  # the window part gets as many cells as the part that keeps every token
    n_rs_seq: int = 0  # how many positions back a recurrent state can go
    strategy: Strategy | None = None  # the cut to try first; None: the memory's own choice

    def __post_init__(self) -> None:
        if not 1 <= self.n_seq_max <= MAX_SEQ:
            raise BadSeqCount(
                f"n_seq_max is {self.n_seq_max}, it must be 1 to {MAX_SEQ}", value=self.n_seq_max, limit=MAX_SEQ
            )
        if self.n_cells < 1:
            raise ContextError(f"a cache of {self.n_cells} cells holds nothing; it must have at least 1")
        if self.n_rs_seq < 0:
            raise ContextError(
                f"n_rs_seq is {self.n_rs_seq}, it must be at least 0", settings={"n_rs_seq": self.n_rs_seq}
            )
        if self.n_rs_seq and self.n_ubatch < 2 + self.n_rs_seq:
            raise ContextError(
                f"n_rs_seq {self.n_rs_seq} needs an n_ubatch of at least {2 + self.n_rs_seq}, not {self.n_ubatch}: the "
                f"last {1 + self.n_rs_seq} rows of a sequence come together, and one more",
                settings={"n_rs_seq": self.n_rs_seq, "n_ubatch": self.n_ubatch},
            )

    @property
    def keeps(self) -> frozenset[PartName]:
        """The parts that some layer needs."""
        return frozenset(layer.part for layer in self.layers if layer is not None)

    @property
    def n_stream(self) -> int:
        """Streams of cells."""
        return 1 if self.unified else self.n_seq_max

    def layers_in(self, part: PartName) -> dict[int, CacheLayer]:
        """Pure. By il, the layers whose cells are in that part."""
        return {il: a for il, a in enumerate(self.layers) if a is not None and a.part == part}
