"""Times the steps of one context and hands an event of each to the sink; without a sink it does nothing.

Enters: the end of a step, with what came of it. Leaves: events. A step lasts from the end of the one before, so that
steps add up to the call; what the sink takes is counted apart, for the call in which it falls, whatever the sink does
with it then. After a computation all code and data are cold, and every line that is run here costs ten times what it
costs elsewhere: so a sink that can wait is handed a call when it is over, and makes the events itself, many calls
together. Used under the memory's lock.
"""

from __future__ import annotations

from collections import Counter
from time import perf_counter_ns, time_ns
from typing import Any

import numpy as np

from polyseq.batch import CheckedBatch
from polyseq.context_sizes import ContextSizes
from polyseq.errors import Aborted, NoSlot, PolyseqError
from polyseq.memory import Memory, MemoryPlan, Pending
from polyseq.memory.saved import Placing, SavedPart
from polyseq.split import Packed
from polyseq.trace.events import Ended, Opened, Operation, Refused, Restored, Sink, Status
from polyseq.trace.held_call import HeldCall
from polyseq.trace.patient import PatientSink
from polyseq.trace.steps import N_BEFORE, Paid, Step, event_of

_FIRST_STEPS = ("check", "settle", "place")  # N_BEFORE
_UBATCH_STEPS = ("apply", "plan", "compute", "collect")
_NOTHING: Paid = (), 0


class Recorder:
    """A stop watch over the calls of one context."""

    def __init__(self, sink: Sink | None) -> None:
        self._sink = sink
        self._patient = sink if isinstance(sink, PatientSink) else None
        self._i_call = -1
        self._began = self._lap_at = 0
        self._trace_ns = 0  # in all,
        self._trace_began = self._trace_told = 0  # when the call began, and when the end of one was told last;
        self._trace_before_ns = 0  # between the two
        self._steps: list[Step] = []  # of the call under way
        self._n_told = 0  # of these
        self._tells = False  # each step at once
        self._held: HeldCall | None = None  # the call, to be told when it is over
        self._is_done = False
        self._laps: list[int] = []  # when the steps of the ubatch under way ended
        self._miss = ""  # why it had no plan
        self._n_misses = 0
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
        self._steps, self._n_told, self._tells, self._held, self._is_done = [], 0, self._patient is None, None, False
        self._laps, self._miss = [], ""
        self._trace_began, self._trace_before_ns = self._trace_ns, self._trace_ns - self._trace_told
        self._began = self._lap_at = perf_counter_ns()

    def checked(self, batch: CheckedBatch) -> None:
        """Changes the watch: the rows are sound."""
        if self._sink is not None:
            self._step(batch)

    def settled(self, paid: Pending) -> None:
        """Changes the watch: the cache tensors are owed nothing."""
        if self._sink is not None:
            self._step(_told(paid) if paid.copies or paid.shifts else _NOTHING)

    def placed(self, plan: MemoryPlan[Any]) -> None:
        """Changes the watch: there is room for all. A call that the sink does not wait for is told from here on."""
        if self._sink is None:
            return
        self._step(plan)
        if self._patient is None or self._tells:
            return
        held = HeldCall(self._i_call, self._steps)
        if self._patient.holds(held, self._lap_at):
            self._held = held
        else:
            self._tells = True
            self._tell()
        self._traced()

    def applied(self) -> None:
        """Changes the watch: the cells of an ubatch are written and its inputs made."""
        if self._sink is not None:
            self._laps.append(perf_counter_ns())

    def planned(self, n_misses: int, reasons: Counter[str]) -> None:
        """Changes the watch: a plan was found, or built for the reason that was not counted before."""
        if self._sink is None:
            return
        self._laps.append(perf_counter_ns())
        if n_misses != self._n_misses:
            self._miss = next(iter(reasons - self._known))
            self._n_misses, self._known = n_misses, Counter(reasons)

    def computed(self) -> None:
        """Changes the watch."""
        if self._sink is not None:
            self._laps.append(perf_counter_ns())

    def collected(self, n_outputs: int) -> None:
        """Changes the watch: an ubatch is done."""
        if self._sink is not None:
            now = perf_counter_ns()
            self._steps.append((self._lap_at, now, (self._laps, self._miss, n_outputs)))
            self._lap_at, self._laps, self._miss = now, [], ""
            if self._tells:
                self._tell()
                self._traced()

    def done(self) -> None:
        """Changes the sink: the call succeeded."""
        if self._sink is None:
            return
        self._is_done = True
        at, ns, trace_ns, before_ns = self._ends()
        if self._held is not None:
            self._held.ended = at, ns, trace_ns, before_ns
        else:
            self._sink.record(Ended(self._i_call, at, ns, trace_ns, "ok", "done", "", "", before_ns))
        self._steps, self._n_told = [], 0
        self._trace_ns += perf_counter_ns() - (at + ns)

    def failed(self, error: BaseException) -> None:
        """Changes the sink: the call ended with an error, as if it had never been made."""
        if self._sink is None:
            return
        self._let_go()
        step, began, self._lap_at = self._step_name(), self._lap_at, perf_counter_ns()
        took = self._lap_at - began
        try:
            self._tell()
        finally:
            self._steps, self._n_told = [], 0
        if isinstance(error, NoSlot):
            facts = error.needed, error.free, error.largest_run, error.n_cells, error.stream, error.i_ubatch
            self._sink.record(Refused(self._i_call, began, took, error.code, *facts, error.holders))
        self._traced()
        code = error.code if isinstance(error, PolyseqError) else type(error).__name__
        status: Status = "aborted" if isinstance(error, Aborted) else "error"
        at, ns, trace_ns, before_ns = self._ends()
        self._sink.record(Ended(self._i_call, at, ns, trace_ns, status, step, code, str(error), before_ns))
        self._trace_ns += perf_counter_ns() - (at + ns)

    # ---- what is done to the memory, between calls and in them -----------------------------------------

    def operation(self, at: int, name: str, args: tuple[int, ...]) -> None:
        """Changes the sink: the operation that began at `at` is done."""
        began = perf_counter_ns()
        self._aside(Operation(at, name, args), began)

    def restored(self, at: int, part: SavedPart, placing: Placing) -> None:
        """Changes the sink: what was saved of the part that keeps every token is held again."""
        began = perf_counter_ns()
        where = placing.entry, placing.streams, placing.cells, placing.as_saved
        self._aside(Restored(at, part.pos, part.entry, part.seq, part.heads, *where), began)

    # ---- its parts -------------------------------------------------------------------------------------

    def _step(self, what: Any) -> None:
        """Changes the watch, and the sink if it is told at once: a step ends now, and the next one begins."""
        now = perf_counter_ns()
        self._steps.append((self._lap_at, now, what))
        self._lap_at = now
        if self._tells:
            self._tell()
            self._traced()

    def _let_go(self) -> None:
        """Changes the sink: the call under way is told step by step after all."""
        if self._held is not None and self._patient is not None:
            self._patient.lets_go(self._held)
            self._held = None

    def _tell(self) -> None:
        """Changes the sink: all steps so far."""
        assert self._sink is not None
        while self._n_told < len(self._steps):
            event = event_of(self._i_call, self._n_told, self._steps[self._n_told])
            self._n_told += 1
            self._sink.record(event)

    def _traced(self) -> None:
        """Changes the watch: what came since the step ended was the trace's."""
        now = perf_counter_ns()
        self._trace_ns += now - self._lap_at
        self._lap_at = now

    def _aside(self, event: Operation | Restored, began: int) -> None:
        """Changes the sink, and the watch: the step under way, if there is one, is shorter by what this takes."""
        assert self._sink is not None
        if self._n_told < len(self._steps):
            self._let_go()
            self._tells = True
            self._tell()
        self._sink.record(event)
        spent = perf_counter_ns() - began
        self._trace_ns += spent
        self._lap_at += spent

    def _ends(self) -> tuple[int, int, int, int]:
        """Changes the watch, a call ends now: (when it began, how long it took, of that on the trace; before it)."""
        now = perf_counter_ns()
        self._trace_told = self._trace_ns
        return self._began, now - self._began, self._trace_ns - self._trace_began, self._trace_before_ns

    def _step_name(self) -> str:
        """The step under way."""
        if self._is_done:
            return "done"
        i = len(self._steps)
        return _FIRST_STEPS[i] if i < N_BEFORE else _UBATCH_STEPS[len(self._laps)]


def _told(paid: Pending) -> Paid:
    """Pure."""
    copies = tuple(dict.fromkeys((src, dst) for _, src, dst in paid.copies))
    return copies, sum(int(np.count_nonzero(shift)) for shift in paid.shifts.values())
