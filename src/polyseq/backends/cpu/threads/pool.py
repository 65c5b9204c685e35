"""Own threads that run jobs: the caller works as thread 0, the others wait for it in compiled code, without the GIL.

Enters: a plan's records and one step's words. Leaves: when all is done. Calls from several threads take turns. After a
fork the child's first call starts threads of its own. Threads end with `close`, with the pool, or with the interpreter.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.compiler.compile import Progress, function
from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.threads.job import JOB_WORDS, LINE, LINE_WORDS, N_RING, H, J, n_lines
from polyseq.backends.cpu.words import aligned
from polyseq.backends.cpu.words.records import STEP_WORDS
from polyseq.errors import CapabilityError

I64 = NDArray[np.int64]

# Looks at a counter before a thread sleeps: about 0.05 to 0.3 ms. Between steps workers look longer, as the caller's
# Python is between two of them.
N_SPIN = 2000
N_IDLE_SPIN = 6000


class Pool:
    """`n_threads` threads, the caller's among them. Raises CapabilityError where the system gives fewer."""

    def __init__(self, n_threads: int, features: Features, *, progress: Progress | None = None) -> None:
        if n_threads < 1:
            raise ValueError(f"n_threads is {n_threads}, it must be at least 1")
        self.n_threads = n_threads
        self.features = features
        self._progress = progress
        self._run = _c_function(function("threads.executor.run", features, progress), 1)
        self._work = _c_function(function("threads.executor.work", features, progress), 3)
        self._stop = _c_function(function("threads.executor.stop", features, progress), 1)
        self._closed = False
        self._team = self._new_team()

    def run(self, records: I64, step: I64, *, scratch_bytes: int = 0) -> None:
        """Changes what the records' units write: runs all of them. Raises ValueError on a closed pool.

        records [n, RECORD_WORDS], held for as long as a late thread may look at them; step [STEP_WORDS], copied.
        """
        team = self._team
        if team.pid != os.getpid():
            self._team = team = self._new_team()
        with team.lock:
            if self._closed:
                raise ValueError("the pool is closed")
            team.publish(records, step, scratch_bytes)
            self._run(team.head_address)

    def kernel(self, name: str) -> int:
        """Changes the process, the first time: the address of a kernel for this pool's instruction set."""
        return function(name, self.features, self._progress)

    def close(self) -> None:
        """Changes the pool: its threads end, after what they are doing. May be called again."""
        self._closed = True
        if self._team.pid == os.getpid():  # else they are another process's
            with self._team.lock:
                self._end()

    def _new_team(self) -> _Team:
        team, threads = _Team(self.n_threads), list[threading.Thread]()
        # Runs when the pool goes and at the interpreter's exit.
        self._end = weakref.finalize(self, _end, self._stop, team.head, threads, os.getpid())
        try:
            for i in range(1, self.n_threads):
                thread = threading.Thread(target=_live, args=(self._work, team, i), name=f"polyseq-{i}", daemon=True)
                thread.start()
                threads.append(thread)
        except RuntimeError as error:
            raise CapabilityError(
                f"the system gave this process {len(threads) + 1} of n_threads={self.n_threads} threads: {error}",
                remedy={"n_threads": len(threads) + 1},
            ) from error
        finally:
            if len(threads) + 1 < self.n_threads:
                self._end()
        return team


class _Team:
    """What a set of threads shares: the head, and the ring of jobs with the arrays that they point to."""

    def __init__(self, n_threads: int) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.n_threads = n_threads
        self.head: I64 = aligned.zeros((n_lines(n_threads), LINE_WORDS), np.int64)
        self.head_address = aligned.address(self.head)
        self._jobs: I64 = aligned.zeros((N_RING, LINE_WORDS * -(-JOB_WORDS // LINE_WORDS)), np.int64)
        self._steps: I64 = aligned.zeros((N_RING, STEP_WORDS), np.int64)
        self._counters: list[I64] = [aligned.zeros((0, LINE_WORDS), np.int64)] * N_RING
        self._taken: list[I64] = [aligned.zeros((n_threads, 0), np.int64)] * N_RING
        self._scratch: NDArray[np.uint8] = aligned.zeros((n_threads, 0), np.uint8)
        self._kept: list[object] = [None] * N_RING
        self.head[H.RING, :N_RING] = [aligned.address(job) for job in self._jobs]

    def publish(self, records: I64, step: I64, scratch_bytes: int) -> None:
        """Changes the ring's next place, in which no thread is any more: it now holds this job."""
        i = (int(self.head[H.GENERATION, 0]) + 1) % N_RING
        if len(self._counters[i]) < len(records):
            self._counters[i] = aligned.zeros((len(records), LINE_WORDS), np.int64)
            n_words = -(-len(records) // LINE_WORDS) * LINE_WORDS
            self._taken[i] = aligned.zeros((self.n_threads, n_words), np.int64)
        if self._scratch.shape[1] < scratch_bytes:
            self._scratch = aligned.zeros((self.n_threads, _pages(scratch_bytes)), np.uint8, align=_PAGE)
        self._steps[i] = step
        self._kept[i] = (records, self._scratch)
        job = self._jobs[i]
        job[J.RECORDS] = aligned.address(records)
        job[J.N_RECORDS] = len(records)
        job[J.STEP] = aligned.address(self._steps[i])
        job[J.COUNTERS] = aligned.address(self._counters[i])
        job[J.N_THREADS] = self.n_threads
        job[J.N_SPIN] = N_SPIN
        job[J.SCRATCH] = aligned.address(self._scratch)
        job[J.SCRATCH_BYTES] = self._scratch.shape[1]
        job[J.TAKEN] = aligned.address(self._taken[i])
        job[J.TAKEN_BYTES] = self._taken[i].strides[0]


_PAGE = 4096


def _pages(n_bytes: int) -> int:
    """Whole pages, and a line, so that different threads' scratch does not fall on the same places of the cache."""
    return -(-n_bytes // _PAGE) * _PAGE + LINE


def _live(work: Callable[[int, int, int], None], team: _Team, i: int) -> None:
    """A thread's life, for which it holds what it reads."""
    work(team.head_address, i, N_IDLE_SPIN)


def _end(stop: Callable[[int], None], head: I64, threads: list[threading.Thread], pid: int) -> None:
    if pid != os.getpid():  # a fork's child has the parent's pool, but none of its threads
        return
    stop(aligned.address(head))
    for thread in threads:
        thread.join()


def _c_function(address: int, n_args: int) -> Any:
    """A callable that leaves the GIL to others while it runs."""
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * n_args)(address)
