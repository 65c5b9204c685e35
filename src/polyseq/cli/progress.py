"""Waiting made visible: bars and spinners on stderr, nothing where that is no terminal.

Enters: something that takes time. Leaves: its result, once it is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from polyseq.context import Context
from polyseq.weights.sources import resolve


def resolve_model(name: str, *, fetch: bool) -> Path:
    """Changes the cache where something has to be fetched, with a bar for every part of it."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        return resolve(name, allow_fetch=fetch, progress=progress)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner on stderr while the body runs."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield


def warm_up(ctx: Context) -> None:
    """Changes nothing that stays: computes one row and forgets it.

    So what happens once (unpacking weights, building a plan) is waited for here, not charged to the first prompt.
    """
    batch = ctx.batch()
    batch.add(0, output=True)
    ctx.decode(batch)
    ctx.memory.rm(0, -1, -1)
