"""Times the steps of one context and hands an event of each to the sink; without a sink it does nothing.

Enters: the end of a step, with what came of it. Leaves: events. A step lasts from the end of the one before, so that
steps add up to the call; what the sink takes is counted apart. Used under the memory's lock.
"""

from __future__ import annotations

from collections import Counter
from time import perf_counter_ns, time_ns
from typing import Any

import numpy as np

from polyseq.batch import CheckedBatch
from polyseq.context_sizes import ContextSizes
from polyseq.errors import Aborted, NoSlot, PolyseqError
from polyseq.memory import Memory, MemoryPlan, Pending, Slot
from polyseq.split import Packed, Ubatch
from polyseq.trace.events import (
    Checked,
    Computed,
    Ended,
    Event,
    Opened,
    Placed,
    PlacedUbatch,
    Refused,
    Settled,
    Sink,
    Status,
)

_NONE = np.zeros(0, np.intp)
NO_CELLS = Slot(_NONE, _NONE, _NONE)


class Recorder:
    """A stop watch over the calls of one context."""

    def __init__(self, sink: Sink | None) -> None:
        self._sink = sink
        self._i_call = -1
        self._began = self._lap_at = self._trace_ns = 0
        self._step = ""
        self._i_ubatch = self._ubatch_at = self._apply_ns = self._plan_ns = self._compute_ns = 0
        self._plan_miss = ""
        self._known: Counter[str] = Counter()  # reasons of misses seen so far

    def opened(self, model: str, backend: str, sizes: ContextSizes, *, memory: Memory, kind: str) -> None:
        """Changes the sink: what every later event is about. `kind`: of the memory."""
        if self._sink is None:
            return
        self._sink.record(
            Opened(
                at_ns=perf_counter_ns(),
                unix_ns=time_ns(),
                model=model,
                backend=backend,
                n_ctx=sizes.n_ctx,
                n_ctx_seq=sizes.n_ctx_seq,
                n_seq_max=memory.n_seq_max,
                n_batch=sizes.n_batch,
                n_ubatch=sizes.n_ubatch,
                unified=sizes.unified,
                n_pos=memory.n_pos,
                memory=kind,
                parts=tuple(part.name for part in memory.parts),
                packed=isinstance(memory.strategy, Packed),
                copy_replaces=memory.copy_replaces,
            )
        )

    # ---- a call, step by step --------------------------------------------------------------------------

    def begin(self) -> None:
        """Changes the watch: a call begins."""
        if self._sink is None:
            return
        self._i_call += 1
        self._step, self._trace_ns, self._i_ubatch = "check", 0, 0
        self._began = self._lap_at = perf_counter_ns()

    def checked(self, batch: CheckedBatch) -> None:
        """Changes the sink: the rows are sound."""
        if self._sink is None:
            return
        at, ns = self._lap("settle")
        columns = batch.token, batch.pos, batch.seq_ids, batch.seq_offsets, batch.output
        self._record(Checked(self._i_call, at, ns, *columns))

    def settled(self, paid: Pending) -> None:
        """Changes the sink: the cache tensors are owed nothing."""
        if self._sink is None:
            return
        at, ns = self._lap("place")
        n_shifted = sum(int(np.count_nonzero(shift)) for shift in paid.shifts.values())
        copies = tuple(dict.fromkeys((src, dst) for _, src, dst in paid.copies))
        self._record(Settled(self._i_call, at, ns, copies, n_shifted))

    def placed(self, plan: MemoryPlan[Any]) -> None:
        """Changes the sink: there is room for all."""
        if self._sink is None:
            return
        at, ns = self._lap("apply")
        ubatches = tuple(map(_placed, plan.ubatches, plan.slots))
        self._record(Placed(self._i_call, at, ns, ubatches))

    def applied(self) -> None:
        """Changes the watch: the cells of an ubatch are written and its inputs made."""
        if self._sink is not None:
            self._ubatch_at, self._apply_ns = self._lap("plan")

    def planned(self, n_misses: int, reasons: Counter[str]) -> None:
        """Changes the watch: a plan was found, or built for the reason that was not counted before."""
        if self._sink is None:
            return
        _, self._plan_ns = self._lap("compute")
        self._plan_miss = ""
        if n_misses != self._known.total():
            self._plan_miss = next(iter(reasons - self._known))
            self._known = Counter(reasons)

    def computed(self) -> None:
        """Changes the watch."""
        if self._sink is not None:
            _, self._compute_ns = self._lap("collect")

    def collected(self, n_outputs: int) -> None:
        """Changes the sink: an ubatch is done."""
        if self._sink is None:
            return
        _, collect_ns = self._lap("apply")
        parts = self._apply_ns, self._plan_ns, self._plan_miss, self._compute_ns, collect_ns
        self._record(Computed(self._i_call, self._i_ubatch, self._ubatch_at, *parts, n_outputs))
        self._i_ubatch += 1

    def done(self) -> None:
        """Changes the sink: the call succeeded."""
        if self._sink is not None:
            self._step = "done"
            self._end("ok", "", "")

    def failed(self, error: BaseException) -> None:
        """Changes the sink: the call ended with an error, as if it had never been made."""
        if self._sink is None:
            return
        if isinstance(error, NoSlot):
            at, ns = self._lap("place")
            facts = error.needed, error.free, error.largest_run, error.n_cells, error.stream, error.i_ubatch
            self._record(Refused(self._i_call, at, ns, error.code, *facts, error.holders))
        code = error.code if isinstance(error, PolyseqError) else type(error).__name__
        self._end("aborted" if isinstance(error, Aborted) else "error", code, str(error))

    # ---- its parts -------------------------------------------------------------------------------------

    def _lap(self, next_step: str) -> tuple[int, int]:
        """Changes the watch: (when the step began, how long it took)."""
        began, now = self._lap_at, perf_counter_ns()
        self._lap_at, self._step = now, next_step
        return began, now - began

    def _record(self, event: Event) -> None:
        assert self._sink is not None
        began = perf_counter_ns()
        self._sink.record(event)
        self._lap_at = perf_counter_ns()
        self._trace_ns += self._lap_at - began

    def _end(self, status: Status, code: str, message: str) -> None:
        ns = perf_counter_ns() - self._began
        self._record(Ended(self._i_call, self._began, ns, self._trace_ns, status, self._step, code, message))


def _placed(ubatch: Ubatch, slot: Any) -> PlacedUbatch:
    cells = slot.kv or NO_CELLS
    return PlacedUbatch(
        n_seqs=ubatch.n_seqs,
        n_seq_tokens=ubatch.n_seq_tokens,
        reason=ubatch.reason,
        rows=ubatch.batch_idxs,
        streams=cells.streams,
        row_stream=cells.row_stream,
        cells=cells.cells,
    )
