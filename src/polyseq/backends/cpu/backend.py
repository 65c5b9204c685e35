"""The fast backend, as `backends.registry` knows it.

Enters: weights. Leaves: a `LoadedModel`, whose weights are packed with the first plan that reads them.
"""

from __future__ import annotations

from typing import cast, get_args

from polyseq.backends.backend import CacheTensors, Plan
from polyseq.backends.cpu.cache import CpuCache, n_bytes_of
from polyseq.backends.cpu.compiler.compile import Progress
from polyseq.backends.cpu.compiler.features import features
from polyseq.backends.cpu.kv.layout import KvType
from polyseq.backends.cpu.plan.plan import CpuPlan
from polyseq.backends.cpu.plan.shift import ShiftPlan
from polyseq.backends.cpu.plan.weights import PackedWeights
from polyseq.backends.cpu.threads.cores import n_cores
from polyseq.backends.cpu.threads.pool import Pool
from polyseq.backends.options import DEFAULTS, RunOptions
from polyseq.backends.room import Room
from polyseq.errors import CapabilityError
from polyseq.graph import CachePart, Graph, Weight, ops
from polyseq.weights.weights import Weights

MOST_THREADS = 256


class CpuModel:
    """A model's weights in panels, shared by its contexts; each context has cells and threads of its own."""

    def __init__(self, weights: Weights, progress: Progress | None) -> None:
        self.weights = PackedWeights(weights)
        self._progress = progress

    def cache(self, parts: tuple[CachePart, ...], options: RunOptions = DEFAULTS) -> CpuCache:
        """Pure. Cells, all zero, and threads. Raises CapabilityError for options that this backend has not."""
        n_threads = min(n_cores(), MOST_THREADS) if options.n_threads is None else options.n_threads
        if not 1 <= n_threads <= MOST_THREADS:
            raise CapabilityError(
                f"n_threads is {n_threads}, it must be 1 to {MOST_THREADS}", remedy={"n_threads": None}
            )
        kv_type = _kv_type(options)
        pool = Pool(n_threads, features(), progress=self._progress)
        return CpuCache(parts, kv_type=kv_type, pool=pool)

    def room(self, parts: tuple[CachePart, ...], options: RunOptions = DEFAULTS) -> Room:
        """Pure. See `LoadedModel.room`; what stands between two layers of a run comes on top."""
        kv_type = _kv_type(options)
        return Room(kv_type, self.weights.n_bytes_packed, sum(n_bytes_of(part, kv_type) for part in parts))

    def plan(self, graph: Graph, cache: CacheTensors | None) -> Plan:
        """Changes what is packed and returns the plan. Raises TypeError for cache tensors of another backend."""
        if cache is None:
            cache = self.cache(())
        if not isinstance(cache, CpuCache):
            raise TypeError(f"the cpu backend cannot use cache tensors of type {type(cache).__name__}")
        if len(graph.nodes) == 1 and isinstance(graph.nodes[0].op, ops.CacheShift):
            factors = [self.weights.array(a.name) for a in graph.nodes[0].args if isinstance(a, Weight)]
            return ShiftPlan(graph.nodes[0].op, cache, factors[0] if factors else None)
        return CpuPlan(graph, self.weights, cache)


def _kv_type(options: RunOptions) -> KvType:
    """Pure. The type in effect. Raises CapabilityError."""
    kv_type = options.kv_type or "bf16"
    if kv_type not in get_args(KvType):
        raise CapabilityError(
            f"kv_type {kv_type!r} is not there; known: {', '.join(get_args(KvType))}", remedy={"kv_type": None}
        )
    return cast(KvType, kv_type)


class CpuBackend:
    """Kernels that name their instructions (arXiv-free facts of x86: Intel's intrinsics guide), run by own threads."""

    name = "cpu"
    packed = True
    same_bits = True

    def __init__(self, *, progress: Progress | None = None) -> None:
        self._progress = progress

    def load(self, weights: Weights) -> CpuModel:
        """Pure. Weights are packed with the first plan that reads them."""
        return CpuModel(weights, self._progress)
