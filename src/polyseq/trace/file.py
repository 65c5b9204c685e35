"""A trace in a file: one event a line, as JSON, many lines to a write.

Enters: events. Leaves: lines, together where they come quickly, at once where they come slowly; then, read back, the
same events.
"""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import suppress
from os import PathLike
from time import perf_counter_ns
from types import TracebackType
from weakref import WeakSet

from polyseq.errors import BadColumn, ContextError
from polyseq.trace.events import Checked, Ended, Event, Opened, Operation, Refused, Restored, Settled
from polyseq.trace.held_call import HeldCall
from polyseq.trace.lines import from_line, to_line

PERIOD_NS = 250_000_000  # from one write to the next, where calls come faster
MOST_HELD = 64  # calls, and events that belong to none of them
MOST_ROWS = 256  # of calls held back


class TraceFile:
    """A sink that writes the events of one context; it replaces a file that was there.

    Calls are held back and written many at once, since whatever is done right after a computation takes several times
    as long as it does otherwise. All is written before a call is computed if the last write is 0.25 s ago, 64 calls
    are held back, or calls with 256 rows, that one among them: it is in the file before it is computed. So it is as
    something is done to the memory. A call that fails, restored sequences, `flush`, `close`, a fork, and the end of the
    interpreter or of the last reference write what there is.

    A process that is killed loses the calls that were placed within 0.25 s after the last write, at most 64 with fewer
    than 256 rows together, and the end of the call before them. What is in the file can be read.

    What the file does not take fails the call or operation under way, and comes first in the next write. Raises OSError
    where the file cannot be opened. `close` it, or use it in `with`; what comes after is dropped.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._lock = threading.Lock()
        self._opened = False
        self._held: list[Event | HeldCall] = []
        self._n_rows = 0  # of the calls in it
        self._unwritten = b""  # what the file did not take
        self._written_at = 0
        self._path = path
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115  lives as long as the sink
        _FILES.add(self)

    def record(self, event: Event, /) -> None:
        """Changes the file, now or later. Raises `ContextError` for a second context or a file that takes no more."""
        with self._lock:
            if self._file.closed:
                return
            if isinstance(event, Opened):
                if self._opened:
                    raise ContextError("this file traces a context already; give each one a file of its own")
                self._opened = True
            if self._unwritten and not isinstance(event, Operation | Restored):  # these are done, a call can still fail
                self._write()
            self._held.append(event)
            if isinstance(event, Checked):
                self._n_rows += len(event.seq_ids)
            if self._unwritten or _at_once(event) or (not _more_follows(event) and self._is_due(0, perf_counter_ns())):
                self._write()

    def holds(self, call: HeldCall, now: int, /) -> bool:
        """Changes what is held back: the call, unless something is to be written before it is computed."""
        with self._lock:
            if self._file.closed or self._unwritten or self._is_due(call.n_rows, now):
                return False
            self._held.append(call)
            self._n_rows += call.n_rows
            return True

    def lets_go(self, call: HeldCall, /) -> None:
        """Changes what is held back: not the call, if it is not written yet."""
        with self._lock:
            if call in self._held:
                self._held.remove(call)
                self._n_rows -= call.n_rows

    def flush(self) -> None:
        """Changes the file: it has all that was recorded. Raises `ContextError` for a file that takes no more."""
        with self._lock:
            if not self._file.closed:
                self._write()

    def close(self) -> None:
        """Changes the file: it has all that was recorded, and gets no more. May be called again."""
        with self._lock:
            if not self._file.closed:
                with suppress(ContextError):  # `record` has said what could not be written
                    self._write()
                self._file.close()

    def _is_due(self, n_rows: int, now: int) -> bool:
        """Pure. Whether to write now, with so many rows more."""
        return now - self._written_at >= PERIOD_NS or len(self._held) >= MOST_HELD or self._n_rows + n_rows >= MOST_ROWS

    def _write(self) -> None:
        """Changes the file by all that is held back. What it does not take comes first the next time."""
        n = len(self._held) - _under_way(self._held)
        text = self._unwritten + _text(self._held[:n])
        self._unwritten, self._held, self._n_rows, self._written_at = b"", self._held[n:], 0, perf_counter_ns()
        try:
            while text:
                text = text[self._file.write(text) :]
        except OSError as error:
            self._unwritten = text
            raise ContextError(f"the trace {self._path} cannot be written: {error.strerror}") from error

    def _forked(self) -> None:
        """Changes the sink in a child process: what the parent holds back is the parent's."""
        self._lock = threading.Lock()
        self._held, self._unwritten, self._n_rows = [], b"", 0

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # it could be opened
            self.close()


def read_trace(path: str | PathLike[str]) -> tuple[Event, ...]:
    """Pure. The events of a file, in order; a last line that is not whole yet is left out.

    Raises OSError, and `BadColumn` naming the line that is no event.
    """
    with open(path, "rb") as file:
        *lines, _ = file.read().split(b"\n")
    events = tuple(from_line(i, line) for i, line in enumerate(lines, 1))
    if not events or not isinstance(events[0], Opened) or any(isinstance(e, Opened) for e in events[1:]):
        raise BadColumn(f"{path} is no trace: a trace begins with one line that tells of its context")
    return events


def _under_way(held: list[Event | HeldCall]) -> bool:
    """Pure. Whether the last one is a call that has not ended."""
    return bool(held) and isinstance(held[-1], HeldCall) and held[-1].ended is None


def _text(held: list[Event | HeldCall]) -> bytes:
    """Pure. A line for each event, in order."""
    lines = [item.lines() if isinstance(item, HeldCall) else to_line(item) for item in held]
    return "".join([f"{line}\n" for line in lines]).encode("ascii")


def _at_once(event: Event) -> bool:
    """Pure. Whether it is written as it comes, with what is held back."""
    return isinstance(event, Opened | Restored) or (isinstance(event, Ended) and event.status != "ok")


def _more_follows(event: Event) -> bool:
    """Pure. Whether there is nothing to be computed before the next event; a call that succeeded does not fail for its
    end."""
    return isinstance(event, Checked | Settled | Refused | Ended)


# ---- what ends a process, or makes it two --------------------------------------------------------------------------

_FILES: WeakSet[TraceFile] = WeakSet()


def _flush_all() -> None:
    for file in list(_FILES):
        with suppress(ContextError):
            file.flush()


def _forked() -> None:
    for file in list(_FILES):
        file._forked()


atexit.register(_flush_all)
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_flush_all, after_in_child=_forked)
