"""Measures what decode calls cost on this machine: step time and bytes, over shapes chosen to tell costs apart.

Enters: a model and a time budget. Leaves: `Measured`: observations that `CostModel.fit` takes. Rounds over all points
are interleaved, since machines drift; a point's repeats are summed up by their median.
"""

from __future__ import annotations

import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from polyseq.backends import RunOptions
from polyseq.backends import backend as find_backend
from polyseq.backends.options import DEFAULTS
from polyseq.batch import Batch
from polyseq.context import Context
from polyseq.errors import PolyseqWarning
from polyseq.explain.advance import advance
from polyseq.explain.cost import ByteModel, CostModel, Observation
from polyseq.explain.effective import Asked, Effective, effective
from polyseq.explain.points import Point, choose_points
from polyseq.explain.shapes import UbatchShape, shapes_of
from polyseq.memory import Memory
from polyseq.model import Model

MOST_KV_BYTES = 1 << 29  # of both caches together
MOST_ROWS = 512
LEAST_ROWS = 64  # measured however slow they are: a fit to fewer says nothing of prompts
N_SEQS = 32  # sequences of the unified cache
N_STREAMS = 16
_MOST_ROUNDS = 15
_PROBE_SHARE = 20  # the largest ubatch takes at most this part of the time that is given

Progress = Callable[[str, float, float], None]  # what is running, seconds gone, seconds in all


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was measured, in the order of the points."""

    points: tuple[Point, ...]
    observations: tuple[Observation, ...]  # one per point
    byte_points: tuple[Point, ...]  # of one ubatch each
    byte_shapes: tuple[UbatchShape, ...]
    n_bytes: tuple[int, ...]  # the most in use during the call, beside weights and cache
    kv_bytes_per_cell: int
    most_rows: int  # the largest ubatch that was measured
    backend: str
    packed: bool  # it takes rows of streams as they come
    options: RunOptions  # in effect
    effective: Effective  # of the larger context

    @property
    def cost(self) -> CostModel:
        return CostModel.fit(self.observations)

    @property
    def memory(self) -> ByteModel:
        return ByteModel.fit(self.byte_shapes, self.n_bytes)


def measure(
    model: Model,
    *,
    seconds: float = 30.0,
    backend: str = "auto",
    options: RunOptions = DEFAULTS,
    progress: Progress | None = None,
) -> Measured:
    """Changes nothing that stays. Computes tokens in two contexts for about `seconds`, but at least one round."""
    began = perf_counter()

    def gone(what: str) -> float:
        so_far = perf_counter() - began
        if progress is not None:
            progress(what, min(so_far, seconds), seconds)
        return so_far

    gone("warming up")
    bench = Bench(model, backend=backend, options=options, most_seconds=seconds / _PROBE_SHARE)
    for i_round in range(_MOST_ROUNDS):
        for point in bench.points:
            if i_round and gone(point.name) + bench.expected(point) > seconds:
                return bench.measured()
            gone(point.name)
            bench.run(point)
    return bench.measured()


class Bench:
    """Two contexts on one model, and the times of all points so far.

    Their cells are written once by computing, so that reading them later is reading memory. What a sequence holds is
    then only a matter of metadata: `hold` gives the same cells to others.
    """

    def __init__(
        self, model: Model, *, backend: str = "auto", options: RunOptions = DEFAULTS, most_seconds: float = 1.5
    ) -> None:
        """Loads, warms up and measures bytes; no ubatch above `LEAST_ROWS` takes longer than `most_seconds`."""
        per_cell = sum(4 * layer.n_values for layer in model.architecture.cache_layers if layer is not None)
        n_fit = max(64, MOST_KV_BYTES // max(per_cell, 1) // 3)
        n_cells = min(2 * MOST_ROWS, n_fit, model.architecture.hparams.n_ctx_train)
        n_each = max(1, min(n_cells // 2, 2 * n_fit // N_STREAMS))
        self._n_vocab = model.architecture.hparams.n_vocab
        self._model, self._backend, self._options = model, backend, options
        self._unified = _context(model, n_cells, N_SEQS, unified=True, backend=backend, options=options)
        self._streams = _context(model, n_each * N_STREAMS, N_STREAMS, unified=False, backend=backend, options=options)
        self._most_rows = self._warm_unified(most_seconds)
        n_warm = self._warm_streams()
        self.points = choose_points(
            most_rows=self._most_rows,
            n_cells=self._unified.memory.n_used,
            n_cells_stream=n_warm,
            n_streams=N_STREAMS,
            n_seqs=N_SEQS,
        )
        self._times: dict[Point, list[float]] = {point: [] for point in self.points}
        self._shapes = {point: self._shapes_of(point) for point in self.points}
        self._bytes = {point: self._most_bytes(point) for point in self.points if point.for_bytes}

    def run(self, point: Point) -> None:
        """Changes the times: one more of this call, from the batch to its outputs."""
        ctx, batch = self._ready(point)
        began = perf_counter()
        ctx.decode(batch)
        self._times[point].append(perf_counter() - began)

    def expected(self, point: Point) -> float:
        """Seconds that the next run of a point may take; infinite before the first."""
        return max(self._times[point], default=np.inf)

    def measured(self) -> Measured:
        """Pure. What is known so far; points that were not run are left out."""
        points = tuple(point for point in self.points if self._times[point])
        return Measured(
            points=points,
            observations=tuple(Observation(self._shapes[p], tuple(self._times[p])) for p in points),
            byte_points=tuple(self._bytes),
            byte_shapes=tuple(self._shapes[p][0] for p in self._bytes),
            n_bytes=tuple(self._bytes.values()),
            kv_bytes_per_cell=self._unified.n_bytes_kv // self._unified.n_ctx,
            most_rows=self._most_rows,
            backend=self._unified.backend,
            packed=find_backend(self._unified.backend).packed,
            options=self._unified.options,
            effective=effective(self._unified, Asked()),
        )

    # ---- cells that have been written ------------------------------------------------------------------

    def _warm_unified(self, most_seconds: float) -> int:
        """Changes the cells: 1, 2, 4, ... rows until a call takes too long. The most rows of a call."""
        ctx = self._unified
        ctx.decode(self._batch(ctx, (1,), "last"))  # loads the weights; not counted
        n, most = 1, 1
        while n <= min(ctx.n_batch, ctx.memory.n_free):
            most = n
            took = self._probe(n)
            if (
                n >= LEAST_ROWS and took > most_seconds / 2 and min(took, self._probe(n)) > most_seconds / 2
            ):  # one may be disturbed
                break
            n *= 2
        return most

    def _probe(self, n: int) -> float:
        """Changes the cells: sequence 0 holds 2n rows, of which n are computed now. Seconds of the call."""
        ctx = self._unified
        ctx.memory.rm(0, n, -1)  # it holds 1 + 1 + 2 + ... + n/2 = n, and n more the second time
        began = perf_counter()
        ctx.decode(self._batch(ctx, (n,), "last"))
        return perf_counter() - began

    def _warm_streams(self) -> int:
        """Changes the cells: one sequence computed, the others copies. Cells written in each stream."""
        ctx = self._streams
        n_warm = min(ctx.n_ctx_seq, self._unified.memory.n_used)
        while left := n_warm - 1 - ctx.memory.pos_max(0) - 1:
            ctx.decode(self._batch(ctx, (min(left, self._most_rows, ctx.n_batch),), "none"))
        for s in range(1, ctx.n_seq_max):
            ctx.memory.cp(0, s)
        ctx.decode(self._batch(ctx, (1,), "last"))  # carries the copies out
        return n_warm

    # ---- one point -------------------------------------------------------------------------------------

    def _ready(self, point: Point) -> tuple[Context, Batch]:
        ctx = self._unified if point.unified else self._streams
        hold(ctx.memory, point.past)
        return ctx, self._batch(ctx, point.rows, point.outputs)

    def _batch(self, ctx: Context, rows: tuple[int, ...], outputs: str) -> Batch:
        batch = ctx.batch()
        for s, n in enumerate(rows):
            output = np.full(n, outputs == "all")
            output[-1] = outputs != "none"
            batch.extend(np.arange(n, dtype=np.int32) * 7919 % self._n_vocab, seq=s, output=output)
        return batch

    def _shapes_of(self, point: Point) -> tuple[UbatchShape, ...]:
        ctx, batch = self._ready(point)
        return shapes_of(ctx.memory, ctx.plan(batch))

    def _most_bytes(self, point: Point) -> int:
        """Most bytes that Python and NumPy held during the first call of a context, beyond those before.

        The first, since a backend may keep what it works in. What is compiled and packed is there.
        """
        assert point.unified and point.past == (0,)
        ctx = _context(self._model, point.n_rows, 1, unified=True, backend=self._backend, options=self._options)
        batch = self._batch(ctx, point.rows, point.outputs)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            ctx.decode(batch)
            return max(0, tracemalloc.get_traced_memory()[1] - before)
        finally:
            tracemalloc.stop()


def hold(memory: Memory, past: tuple[int, ...]) -> None:
    """Changes the cells: sequence i holds positions `0..past[i]-1` and nobody anything else. Nothing is computed."""
    memory.clear()
    advance(memory, np.repeat(np.arange(len(past)), past))


def _context(model: Model, n_ctx: int, n_seq_max: int, *, unified: bool, backend: str, options: RunOptions) -> Context:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PolyseqWarning)  # sizes are chosen here, not asked for
        return Context(
            model, n_ctx=n_ctx, n_seq_max=n_seq_max, n_batch=MOST_ROWS, n_ubatch=MOST_ROWS, unified=unified,
            backend=backend, n_threads=options.n_threads, kv_type=options.kv_type,
        )  # fmt: skip
