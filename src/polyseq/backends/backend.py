"""What a backend is: it packs weights once, makes cache tensors, and turns graphs into plans that run.

Enters: weights and graphs. Leaves: result rows. Step 5 (who computes it). Packed weights, cache tensors and scratch
belong to the backend; nothing above it sees their layout.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from polyseq.graph import Graph, Inputs, KvLayer
from polyseq.weights.weights import Weights


class KvTensors(Protocol):
    """K and V of every layer, in a layout of the backend's own, all zero at first."""

    @property
    def n_bytes(self) -> int:
        """Bytes that all cells take once used."""
        ...

    def copy_stream(self, src: int, dst: int) -> None:
        """Changes stream `dst`: it becomes a copy of stream `src`, all layers."""
        ...

    def read(self, il: int, stream: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Pure. Copies of K [n_cells, n_head_kv, head_k] and V [n_cells, n_head_kv, head_v], f32."""
        ...


class Plan(Protocol):
    """A graph ready to run, for ubatches of any size."""

    def run(self, inputs: Inputs) -> dict[str, NDArray[np.float32]]:
        """Changes cache cells (the graph's effects) and returns the graph's results by name.

        Results own their data: no later run changes them. Raises ValueError for an input that is missing.
        """
        ...


class LoadedModel(Protocol):
    """A model's weights, packed for one backend."""

    def kv_cache(self, layers: tuple[KvLayer, ...], *, n_stream: int, n_cells: int) -> KvTensors:
        """Pure. Cache tensors for `n_stream` streams of `n_cells` cells each."""
        ...

    def plan(self, graph: Graph, kv: KvTensors | None) -> Plan:
        """Packs what the graph reads, if not packed yet, and returns the plan. `kv` None: a graph without cache.

        Raises TypeError for cache tensors of another backend.
        """
        ...


class Backend(Protocol):
    """Who computes."""

    @property
    def name(self) -> str: ...

    def load(self, weights: Weights) -> LoadedModel:
        """Pure. The model for this backend; may pack weights now or with the first plan that reads them."""
        ...
