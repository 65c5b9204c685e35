"""Bars on stderr for what takes long and can be counted; nothing where that is no terminal.

Enters: what is waited for. Leaves: something that is told how far it has come. Apart from `progress`, for a command
that waits for nothing loads no `rich`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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


def bars(*columns: ProgressColumn) -> Progress:
    """Pure. Bars on stderr for as long as they are entered, where that is a terminal."""
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def fetching() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for every part of what is fetched while the body runs; told which part, how many bytes, of how many."""
    with bars(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()) as shown:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = shown.add_task(what, total=total)
            shown.update(tasks[what], completed=done)

        yield progress


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr while the body runs; it calls what it is given with how many are done, of how many."""
    with bars(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
