"""Tables on stdout: the console that prints them. Apart from `text`, for commands that draw none load no `rich`."""

from __future__ import annotations

from rich.console import Console


def stdout_console() -> Console:
    """Pure. For tables on stdout, wide enough not to wrap where nobody watches."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=200)
