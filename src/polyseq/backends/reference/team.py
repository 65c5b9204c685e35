"""Threads that share one product between them, where BLAS would not.

Enters: a function and its arguments for each part. Leaves: the results in order. NumPy lets go of the interpreter
inside a product, so Python's threads do run side by side.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


class Team:
    """As many threads as there are CPUs for this process, the caller's among them. They start with the first use."""

    def __init__(self) -> None:
        self.n_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0

    def map(self, fn: Callable[[A], T], parts: Sequence[A]) -> list[T]:
        """`[fn(part) for part in parts]`, all but the last in other threads."""
        if self._pool is None or self._pid != os.getpid():  # threads do not follow a fork
            self._pool, self._pid = ThreadPoolExecutor(self.n_threads), os.getpid()
        others = [self._pool.submit(fn, part) for part in parts[:-1]]
        last = fn(parts[-1])
        return [*(other.result() for other in others), last]
