"""What a backend is: it packs weights once, makes cache tensors, and turns graphs into plans that run.

Enters: weights and graphs. Leaves: result rows. Step 5 (who computes it). Packed weights, cache tensors and scratch
belong to the backend; nothing above it sees their layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.options import DEFAULTS, RunOptions
from polyseq.backends.room import Room
from polyseq.graph import CachePart, Graph, Inputs
from polyseq.memory.cache_part import PartName
from polyseq.weights.weights import Weights


class CacheTensors(Protocol):
    """What all cells hold, part by part, in a layout of the backend's own; all zero at first."""

    @property
    def n_bytes(self) -> int:
        """Bytes that all cells take once used."""
        ...

    @property
    def options(self) -> RunOptions:
        """What is in effect, where something was left open; None: the backend has no such choice."""
        ...

    def copy_stream(self, part: PartName, src: int, dst: int) -> None:
        """Changes stream `dst` of a part: it becomes a copy of stream `src`, all layers."""
        ...

    def read(self, part: PartName, stream: int, cells: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
        """Pure. Copies of what these cells hold, in the backend's own dtypes; the first axis is cells.

        Keys are "{il}.k" and "{il}.v", or "{il}.{tensor}" of an `RsLayer`, and what else the backend's `write` reads.
        """
        ...

    def write(self, part: PartName, stream: int, cells: NDArray[np.intp], rows: Mapping[str, NDArray[Any]]) -> None:
        """Changes these cells to what `read` gave of as many, perhaps others: bit for bit."""
        ...

    def keeping(self) -> Kept:
        """Changes what can be put back: all that cells hold now, if it is kept before it is overwritten.

        What earlier calls returned is of no use any more.
        """
        ...


class Kept(Protocol):
    """The way back to what cells held, for a call that may fail."""

    def keep(self, part: PartName, streams: NDArray[np.intp], cells: NDArray[np.intp]) -> None:
        """Changes what is kept: cells [n] of streams [n] that hold something and are about to be overwritten."""
        ...

    def put_back(self) -> None:
        """Changes the tensors, after the memory went back: cells hold what they held. May be called again."""
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

    def cache(self, parts: tuple[CachePart, ...], options: RunOptions = DEFAULTS) -> CacheTensors:
        """Pure. Cache tensors for these parts of a memory. Raises CapabilityError for options it does not have."""
        ...

    def room(self, parts: tuple[CachePart, ...], options: RunOptions = DEFAULTS) -> Room:
        """Pure. What weights and cells for these parts would take. Raises CapabilityError as `cache`."""
        ...

    def plan(self, graph: Graph, cache: CacheTensors | None) -> Plan:
        """Packs what the graph reads, if not packed yet, and returns the plan. `cache` None: a graph without cache.

        Raises TypeError for cache tensors of another backend.
        """
        ...


class Backend(Protocol):
    """Who computes."""

    @property
    def name(self) -> str: ...

    @property
    def packed(self) -> bool:
        """Whether rows of an ubatch over several streams need not be rectangular."""
        ...

    @property
    def same_bits(self) -> bool:
        """Whether a row's results are the same to the last bit alone, in company and in any cut, as long as the cells
        of its sequence lie in the order of their positions. `verify` holds it to that."""
        ...

    def load(self, weights: Weights) -> LoadedModel:
        """Pure. The model for this backend; may pack weights now or with the first plan that reads them."""
        ...
