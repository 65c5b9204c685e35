"""Waiting made visible on stderr: bars for what is fetched, a spinner for the rest.

Enters: something that takes time. Leaves: its result, once it is there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path

import typer

from polyseq.context import Context
from polyseq.weights.sources import resolve


def resolve_model(name: str, *, fetch: bool) -> Path:
    """Changes the cache where something has to be fetched, with a bar for every part of it."""
    shown: Callable[[str, int, int], None] | None = None
    with ExitStack() as stack:

        def progress(what: str, done: int, total: int) -> None:
            nonlocal shown
            if shown is None:  # only here: most models are there
                shown = stack.enter_context(import_module("polyseq.cli.bars").fetching())
            shown(what, done, total)

        return resolve(name, allow_fetch=fetch, progress=progress)


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr while the body runs, where that is a terminal. Yields what is to be told of each kernel that
    is compiled meanwhile.
    """
    if not sys.stderr.isatty():
        yield _Compiling(lambda line: typer.echo(line, err=True), once=True)
        return
    with import_module("polyseq.cli.spinner").spinner(what) as update:
        yield _Compiling(update, once=False)


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
