"""Work that competes for the cores while something else is tested."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def _burn(stop: Any) -> None:
    while not stop.is_set():
        sum(range(20000))


@contextmanager
def busy_process_per_core() -> Iterator[None]:
    """A busy process on each core that this one may use, until the end."""
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    processes = [spawn.Process(target=_burn, args=(stop,), daemon=True) for _ in range(len(os.sched_getaffinity(0)))]
    for process in processes:
        process.start()
    yield
    stop.set()
    for process in processes:
        process.join()
