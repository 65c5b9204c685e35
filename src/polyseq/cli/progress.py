"""Waiting made visible: bars and spinners on stderr, nothing where that is no terminal.

Enters: something that takes time. Leaves: its result, once it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from polyseq.context import Context
from polyseq.weights.sources import resolve


def bars(*columns: ProgressColumn) -> Progress:
    """Pure. Bars on stderr for as long as they are entered, where that is a terminal."""
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def resolve_model(name: str, *, fetch: bool) -> Path:
    """Changes the cache where something has to be fetched, with a bar for every part of it."""
    with bars(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()) as shown:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = shown.add_task(what, total=total)
            shown.update(tasks[what], completed=done)

        return resolve(name, allow_fetch=fetch, progress=progress)


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr while the body runs; it calls what it is given with how many are done, of how many."""
    with bars(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr while the body runs. Yields what is to be told of each kernel that is compiled meanwhile."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Compiling(console.print, once=True)
        return
    with console.status(what) as status:
        yield _Compiling(status.update, once=False)


class _Compiling:
    """Says that kernels are compiled, and how many where the line can be written anew."""

    def __init__(self, show: Callable[[str], None], *, once: bool) -> None:
        self._show, self._once = show, once
        self._n = 0

    def __call__(self, kernel: str) -> None:
        self._n += 1
        if self._n == 1 or not self._once:
            number = "" if self._once else f": {self._n}"
            self._show(f"compiling kernels for this CPU, kept for the next time{number}")


def warm_up(ctx: Context) -> None:
    """Changes nothing that stays: computes one row and forgets it.

    So what happens once (unpacking weights, building a plan) is waited for here, not charged to the first prompt.
    """
    batch = ctx.batch()
    batch.add(0, output=True)
    ctx.decode(batch)
    ctx.memory.rm(0, -1, -1)
