"""A KV cache that tells a sink of every sequence operation that succeeded.

With the placed ubatches of the calls these operations are all that changes the cells, so that a trace can be played
again, cell by cell.
"""

from __future__ import annotations

from time import perf_counter_ns

from polyseq.memory import KvCache
from polyseq.trace.events import Operation, Sink


class TracedCache(KvCache):
    """A `KvCache` whose operations are recorded, each under the lock that it runs under."""

    def __init__(self, sink: Sink, *, n_cells: int, n_seq_max: int, unified: bool, n_pos: int = 1) -> None:
        super().__init__(n_cells=n_cells, n_seq_max=n_seq_max, unified=unified, n_pos=n_pos)
        self._sink = sink

    def rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> bool:
        """As `KvCache.rm`, recorded."""
        with self.lock:
            at = perf_counter_ns()
            removed = super().rm(seq_id, p0, p1)
            self._record(at, "rm", seq_id, p0, p1)
            return removed

    def cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """As `KvCache.cp`, recorded."""
        with self.lock:
            at = perf_counter_ns()
            super().cp(src, dst, p0, p1)
            self._record(at, "cp", src, dst, p0, p1)

    def keep(self, seq_id: int) -> None:
        """As `KvCache.keep`, recorded."""
        with self.lock:
            at = perf_counter_ns()
            super().keep(seq_id)
            self._record(at, "keep", seq_id)

    def add(self, seq_id: int, p0: int, p1: int, delta: int) -> None:
        """As `KvCache.add`, recorded."""
        with self.lock:
            at = perf_counter_ns()
            super().add(seq_id, p0, p1, delta)
            self._record(at, "add", seq_id, p0, p1, delta)

    def div(self, seq_id: int, p0: int, p1: int, d: int) -> None:
        """As `KvCache.div`, recorded."""
        with self.lock:
            at = perf_counter_ns()
            super().div(seq_id, p0, p1, d)
            self._record(at, "div", seq_id, p0, p1, d)

    def clear(self) -> None:
        """As `KvCache.clear`, recorded."""
        with self.lock:
            at = perf_counter_ns()
            super().clear()
            self._record(at, "clear")

    def settle(self) -> None:
        """As `KvCache.settle`, recorded."""
        at = perf_counter_ns()
        super().settle()
        self._record(at, "settle")

    def _record(self, at: int, name: str, *args: int) -> None:
        self._sink.record(Operation(at, name, args))
