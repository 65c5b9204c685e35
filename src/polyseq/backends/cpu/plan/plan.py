"""A graph ready to run on this backend, for ubatches of any size.

Enters: a graph, packed weights, a context's cache; then `Inputs` per ubatch. Leaves: results by name. Records are built
when the first run needs them and again when an ubatch has more rows than there is room for. A run plans attention,
sets the words that differ, and hands the records to the pool, with calls of reference functions in between where an op
has no kernel.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.cache import CpuCache
from polyseq.backends.cpu.plan.build import ROW_BLOCK, Builder, Built, Call, width
from polyseq.backends.cpu.plan.fuse import Fused, fused, weight_of
from polyseq.backends.cpu.plan.lower import lower
from polyseq.backends.cpu.plan.weights import PackedWeights
from polyseq.backends.cpu.tiles.seq_tiles import seq_tiles
from polyseq.backends.cpu.words.aligned import address
from polyseq.backends.cpu.words.records import STEP_WORDS, S
from polyseq.backends.reference.run import Run
from polyseq.graph import Graph, Input, Inputs, Ref, Value, Weight, ops
from polyseq.graph.ops import Dim
from polyseq.memory.cache_part import PartName
from polyseq.memory.seq_view import SeqView
from polyseq.memory.view import KvView

F32 = NDArray[np.float32]
_LEAST_ROOM = 64

# Where a run's columns stand in a step, and as what.
_COLUMNS: dict[str, tuple[S, type[np.generic]]] = {
    "token": (S.TOKEN, np.int32),
    "pos": (S.POS, np.int32),
    "out_rows": (S.OUT_ROWS, np.int32),
    "is_embd": (S.IS_EMBD, np.bool_),
}
_PARTS: dict[PartName, S] = {"kv": S.KV, "kv_swa": S.KV_SWA}


class CpuPlan:
    """Runs of one plan take turns: they share the cache's buffers."""

    def __init__(self, graph: Graph, weights: PackedWeights, cache: CpuCache) -> None:
        self._graph, self._weights, self._cache = graph, weights, cache
        self._fused: Fused = fused(graph, lambda weight: weights.reads_records(weight.name))
        weights.pack_all(dict.fromkeys(weight_of(node).name for node in graph.nodes if isinstance(node.op, ops.Linear)))
        self._inputs = graph.inputs()
        self._dims: tuple[Dim, ...] = tuple(
            dict.fromkeys(ref.shape[0] for ref in _values(graph) if isinstance(ref.shape[0], str))
        )
        self._rooms: dict[str, int] = {}
        self._built: Built | None = None

    def run(self, inputs: Inputs) -> dict[str, F32]:
        """Changes cache cells; returns the graph's results by name, each owning its data."""
        given = {ref: inputs.get(ref.name) for ref in self._inputs}
        counts = _counts(given)
        with self._cache.lock:
            built = self._make_room(counts)
            run = _Run(built, self._cache, self._weights, counts, given)
            for name, ref in self._graph.results.items():
                run.result(name, ref)
            run.bind()
            for step in built.steps:
                if isinstance(step, Call):
                    run.call(step)
                else:
                    records = built.records[step.start : step.stop]
                    self._cache.pool.run(records, run.step, scratch_bytes=built.scratch_bytes)
        return run.results

    def _make_room(self, counts: dict[Dim, int]) -> Built:
        """Changes the plan where the ubatch has more rows than any before, or another plan needed more memory."""
        small = self._built is None
        for dim in self._dims:
            n = counts.get(dim, 0)
            if n > self._rooms.get(str(dim), 0):
                self._rooms[str(dim)] = max(_LEAST_ROOM, 1 << (n - 1).bit_length())
                small = True
        if small or self._built is None or self._built.arena is not self._cache.arena(0):
            self._built = Builder(self._graph, self._fused, self._weights, self._cache, self._rooms).build(lower)
        return self._built


class _Run:
    """One run: its step words, its inputs and results, and what reference functions need."""

    def __init__(
        self, built: Built, cache: CpuCache, weights: PackedWeights, counts: dict[Dim, int], given: dict[Input, object]
    ) -> None:
        self.built, self.cache, self.weights, self.counts = built, cache, weights, counts
        self.values: dict[Ref, Any] = dict(given.items())
        self.results: dict[str, F32] = {}
        self.step = np.zeros(STEP_WORDS, np.int64)
        self.reference = Run(cache.states)
        self.kept: list[object] = []  # what the step's words name

    def result(self, name: str, ref: Ref) -> None:
        """Makes room for a result that the records write; a result that is an input is copied."""
        if isinstance(ref, Input):
            self.results[name] = self.values[ref].copy()
            return
        if ref not in self.values:
            n = self._n_rows(ref)
            whole = np.empty((-(-n // ROW_BLOCK) * ROW_BLOCK, width(ref)), np.float32)
            self.values[ref] = whole[:n]
        self.results[name] = self.values[ref]

    def bind(self) -> None:
        """Sets the step's words and the addresses of inputs and results in the records."""
        step = self.step
        step[S.ONE] = 1
        for dim, word in self.built.dims.items():
            step[word] = self.counts.get(dim, 0) if isinstance(dim, str) else dim
        for ref, value in self.values.items():
            if isinstance(ref, Input):
                self._bind_input(ref, value)
        for (turns, pos), word in self.built.turns.items():
            rows = turns.rows(self.values[pos][0])
            self.kept.append(rows)
            step[word] = address(rows)
        for ref, where in self.built.late.items():
            self.built.records[where] = address(self.values[ref])

    def call(self, step: Call) -> None:
        """Computes a node with the reference backend's function."""
        node = step.group.last
        functions = import_module("polyseq.backends.reference.ops").OPS  # only here: few ops have no kernel
        arguments = [self._argument(a) for a in node.args]
        with np.errstate(all="ignore"):
            out = functions[type(node.op)](node.op, self.reference, *arguments)
        if node.out is not None and out is not None:
            self._argument(node.out)[...] = out

    def _bind_input(self, ref: Input, value: Any) -> None:
        if isinstance(value, KvView):
            part: PartName = "kv" if ref.name == "kv" else "kv_swa"
            for word, number in self.cache.plan_tiles(part, value, *self.built.partials.get(part, (0, 0))).items():
                self.step[_PARTS[part] + word] = number
        elif isinstance(value, SeqView):
            found = seq_tiles(value)
            self.kept.append(found)
            self.step[list(found.step_words())] = list(found.step_words().values())
        elif isinstance(value, np.ndarray):
            column, dtype = _COLUMNS.get(ref.name, (None, np.float32))
            self.values[ref] = np.ascontiguousarray(value, dtype)
            if column is not None:
                self.step[column] = address(self.values[ref])
        if ref.name == "pos":
            self.step[S.N_POS] = len(value)

    def _n_rows(self, ref: Ref) -> int:
        n = ref.shape[0]
        return self.counts[n] if isinstance(n, str) else n

    def _argument(self, ref: Ref) -> Any:
        """An array: a weight, an input, or a view of the rows in the arena."""
        if isinstance(ref, Weight):
            return self.weights.array(ref.name)
        ref = self.built.same.get(ref, ref)
        if ref not in self.values:
            n, d = self._n_rows(ref), width(ref)
            at = self.built.places[ref, "rows"]
            return self.built.arena[at : at + n * d * 4].view(np.float32).reshape(n, d)
        return self.values[ref]


def _values(graph: Graph) -> list[Ref]:
    return [ref for node in graph.nodes for ref in (*node.args, node.out) if isinstance(ref, Value)]


def _counts(given: dict[Input, object]) -> dict[Dim, int]:
    """Pure. The ubatch's own sizes, as the inputs' shapes show them."""
    counts: dict[Dim, int] = {}
    for ref, value in given.items():
        if isinstance(value, SeqView):
            counts["n_seqs"] = value.n_seqs
        if isinstance(value, np.ndarray):
            counts |= {dim: n for dim, n in zip(ref.shape, value.shape, strict=True) if isinstance(dim, str)}
    return counts
