"""A memory of any kind that tells a recorder of every sequence operation that succeeded.

With the placed ubatches of the calls these operations are all that changes the memory, so that a trace can be played
again, cell by cell. Everything else goes straight to the memory behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter_ns
from typing import Any

from polyseq.batch import CheckedBatch, SeqRanges
from polyseq.errors import NoSlot
from polyseq.memory import CachePart, CellMap, Memory, MemoryPlan, Pending, Views
from polyseq.memory.compaction import Move
from polyseq.memory.reusable import Reusable
from polyseq.memory.saved import Placing, SavedPart
from polyseq.memory.slot import HeldCells
from polyseq.split import Strategy, Ubatch
from polyseq.trace.recorder import Recorder


class TracedMemory:
    """The memory given, with its operations recorded, each under the lock that it runs under."""

    def __init__(self, memory: Memory, trace: Recorder) -> None:
        self._memory = memory
        self._trace = trace
        self.lock = memory.lock

    # ---- recorded --------------------------------------------------------------------------------------

    def rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> bool:
        """As `Memory.rm`; recorded where it removed something, or would have."""
        with self.lock:
            at = perf_counter_ns()
            removed = self._memory.rm(seq_id, p0, p1)
            if removed:
                self._record(at, "rm", seq_id, p0, p1)
            return removed

    def cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """As `Memory.cp`, recorded."""
        with self.lock:
            at = perf_counter_ns()
            self._memory.cp(src, dst, p0, p1)
            self._record(at, "cp", src, dst, p0, p1)

    def keep(self, seq_id: int) -> None:
        """As `Memory.keep`, recorded."""
        with self.lock:
            at = perf_counter_ns()
            self._memory.keep(seq_id)
            self._record(at, "keep", seq_id)

    def add(self, seq_id: int, p0: int, p1: int, delta: int) -> None:
        """As `Memory.add`, recorded."""
        with self.lock:
            at = perf_counter_ns()
            self._memory.add(seq_id, p0, p1, delta)
            self._record(at, "add", seq_id, p0, p1, delta)

    def div(self, seq_id: int, p0: int, p1: int, d: int) -> None:
        """As `Memory.div`, recorded."""
        with self.lock:
            at = perf_counter_ns()
            self._memory.div(seq_id, p0, p1, d)
            self._record(at, "div", seq_id, p0, p1, d)

    def clear(self) -> None:
        """As `Memory.clear`, recorded."""
        with self.lock:
            at = perf_counter_ns()
            self._memory.clear()
            self._record(at, "clear")

    def settle(self) -> None:
        """As `Memory.settle`, recorded."""
        at = perf_counter_ns()
        self._memory.settle()
        self._record(at, "settle")

    def moved(self, move: Move) -> None:
        """As `Memory.moved`, recorded by its stream: which cells move follows from what is held."""
        at = perf_counter_ns()
        self._memory.moved(move)
        self._record(at, "moved", move.stream, *([] if move.part == "kv" else [1]))

    def _record(self, at: int, name: str, *args: int) -> None:
        self._trace.operation(at, name, args)

    # ---- as they are -----------------------------------------------------------------------------------

    @property
    def n_seq_max(self) -> int:
        return self._memory.n_seq_max

    @property
    def n_pos(self) -> int:
        return self._memory.n_pos

    @property
    def parts(self) -> tuple[CachePart, ...]:
        return self._memory.parts

    @property
    def strategy(self) -> Strategy:
        return self._memory.strategy

    @strategy.setter
    def strategy(self, strategy: Strategy) -> None:
        self._memory.strategy = strategy

    @property
    def ranges(self) -> SeqRanges:
        return self._memory.ranges

    @property
    def copy_replaces(self) -> bool:
        return self._memory.copy_replaces

    def init_batch(self, batch: CheckedBatch, n_ubatch: int) -> MemoryPlan[Any] | NoSlot:
        return self._memory.init_batch(batch, n_ubatch)

    def retry_batch(self, batch: CheckedBatch, n_ubatch: int) -> MemoryPlan[Any] | None:
        return self._memory.retry_batch(batch, n_ubatch)

    def mark(self) -> Any:
        return self._memory.mark()

    def in_use(self, mark: Any, slot: Any) -> tuple[HeldCells, ...]:
        return self._memory.in_use(mark, slot)

    def apply(self, ubatch: Ubatch, slot: Any) -> None:
        self._memory.apply(ubatch, slot)

    def undo(self, mark: Any, slots: Iterable[Any]) -> None:
        self._memory.undo(mark, slots)

    def views(self, ubatch: Ubatch, slot: Any) -> Views:
        return self._memory.views(ubatch, slot)

    def pending(self) -> Pending:
        return self._memory.pending()

    def copied(self) -> None:
        self._memory.copied()

    def compaction(self) -> tuple[Move, ...]:
        return self._memory.compaction()

    def saved(self, seq_ids: list[int]) -> tuple[SavedPart, ...]:
        return self._memory.saved(seq_ids)

    def place_saved(self, parts: tuple[SavedPart, ...]) -> tuple[Placing, ...] | NoSlot:
        return self._memory.place_saved(parts)

    def restore(self, parts: tuple[SavedPart, ...], placings: tuple[Placing, ...]) -> None:
        """As `Memory.restore`, recorded for the part that keeps every token."""
        at = perf_counter_ns()
        self._memory.restore(parts, placings)
        for part, placing in zip(parts, placings, strict=True):
            if part.name == "kv":
                self._trace.restored(at, part, placing)

    def pos_min(self, seq_id: int) -> int:
        return self._memory.pos_min(seq_id)

    def pos_max(self, seq_id: int) -> int:
        return self._memory.pos_max(seq_id)

    @property
    def why_no_shift(self) -> str:
        return self._memory.why_no_shift

    def why_torn(self, batch: CheckedBatch) -> str:
        return self._memory.why_torn(batch)

    def why_no_drop(self, seq_id: int, p0: int, p1: int) -> str:
        return self._memory.why_no_drop(seq_id, p0, p1)

    def reusable(self, seq_id: int, wanted: int) -> Reusable:
        return self._memory.reusable(seq_id, wanted)

    @property
    def n_used(self) -> int:
        return self._memory.n_used

    @property
    def n_free(self) -> int:
        return self._memory.n_free

    def map(self) -> CellMap:
        return self._memory.map()

    def columns(self) -> dict[str, bytes]:
        return self._memory.columns()

    def check(self) -> None:
        self._memory.check()
