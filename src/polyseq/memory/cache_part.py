"""A part of a memory, as its backend sees it: how many cells there are and what each holds, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyseq.memory.cache_layer import CacheLayer, PartName

__all__ = ["CachePart", "PartName"]


@dataclass(frozen=True, slots=True)
class CachePart:
    """`n_stream` x `n_cells` cells. "kv" keeps every token until a sequence operation lets it go, "kv_swa" a window,
    "rs" states (always one stream).
    """

    name: PartName
    n_stream: int
    n_cells: int
    layers: Mapping[int, CacheLayer]  # il -> what a cell holds for that layer

    @property
    def rotates(self) -> bool:
        """Whether K of its cells can be owed a rotation."""
        return all(layer.rotates for layer in self.layers.values())

    @property
    def n_values_per_cell(self) -> int:
        """Numbers in one cell, over all layers."""
        return sum(layer.n_values for layer in self.layers.values())

    @property
    def n_values(self) -> int:
        """Numbers in all cells."""
        return self.n_stream * self.n_cells * self.n_values_per_cell
