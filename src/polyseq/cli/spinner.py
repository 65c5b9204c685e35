"""A spinner on stderr. Apart from `progress`, for a command that nobody watches loads no `rich`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def spinner(what: str) -> Iterator[Callable[[str], None]]:
    """It turns while the body runs; called with a text, it says that instead."""
    with Console(stderr=True).status(what) as status:
        yield status.update
