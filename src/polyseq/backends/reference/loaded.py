"""Weights for the reference backend: dequantised to float32 once, when the first plan reads them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.backend import CacheTensors
from polyseq.backends.options import DEFAULTS, RunOptions
from polyseq.backends.reference.cache import ReferenceCache
from polyseq.backends.reference.linear import laid_out
from polyseq.backends.reference.plan import ReferencePlan
from polyseq.backends.room import Room
from polyseq.errors import CapabilityError
from polyseq.graph import CachePart, Graph
from polyseq.weights.weights import Weights

_F32 = 4  # bytes


class ReferenceModel:
    """A model's weights as float32 arrays by name."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._f32: dict[str, NDArray[np.float32]] = {}

    def cache(self, parts: tuple[CachePart, ...], options: RunOptions = DEFAULTS) -> ReferenceCache:
        """Pure. Cache tensors, all zero. Raises CapabilityError for options: there is one way to compute."""
        _refuse(options)
        return ReferenceCache(parts)

    def room(self, parts: tuple[CachePart, ...], options: RunOptions = DEFAULTS) -> Room:
        """Pure. See `LoadedModel.room`: every number takes 4 bytes."""
        _refuse(options)
        n_params = sum(self._weights.info(name).n_elements for name in self._weights.names())
        return Room("f32", _F32 * n_params, _F32 * sum(part.n_values for part in parts))

    def plan(self, graph: Graph, cache: CacheTensors | None) -> ReferencePlan:
        """Dequantises what the graph reads, if not done yet, and returns the plan.

        Raises TypeError for cache tensors of another backend.
        """
        if not (cache is None or isinstance(cache, ReferenceCache)):
            raise TypeError(f"the reference backend cannot use cache tensors of type {type(cache).__name__}")
        return ReferencePlan(graph, {w.name: self._weight(w.name) for w in graph.weights()}, cache)

    def _weight(self, name: str) -> NDArray[np.float32]:
        if name not in self._f32:
            values = self._weights.f32(name)
            self._f32[name] = laid_out(values) if values.ndim == 2 else np.ascontiguousarray(values)
        return self._f32[name]


def _refuse(options: RunOptions) -> None:
    """Raises CapabilityError for what there is no choice of."""
    if options.n_threads is not None:
        raise CapabilityError(
            "the reference backend takes no n_threads: NumPy's BLAS has threads of its own",
            remedy={"n_threads": None},
        )
    if options.kv_type not in (None, "f32"):
        raise CapabilityError(
            f"the reference backend keeps K and V as f32, not {options.kv_type}", remedy={"kv_type": None}
        )


class ReferenceBackend:
    """NumPy in float32: the definition of every op."""

    name = "reference"
    packed = False  # it could; llama.cpp's cut is what all others are compared with
    same_bits = False  # the sums of a matrix product depend on its shape

    def load(self, weights: Weights) -> ReferenceModel:
        """Pure. Weights are dequantised with the first plan that reads them."""
        return ReferenceModel(weights)
