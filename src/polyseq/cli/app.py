"""The `polyseq` program: its commands and what holds for all of them.

Enters: `sys.argv`. Leaves: an exit code. The commands themselves are in files of their own, each loaded when it is
asked for: `plan` answers without what a model needs.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from polyseq import __version__
from polyseq.cli.reporting import EXIT_INTERRUPTED, EXIT_USAGE, report_error

COMMANDS = (
    "generate",
    "embed",
    "rerank",
    "plan",
    "trace",
    "tune",
    "verify",
    "pull",
    "inspect",
    "warmup",
)  # each the function of that name in `polyseq.cli.<name>`

_UsageError: Any = typer.BadParameter.__mro__[1]  # what the parser raises; typer gives it no name of its own


class _Commands(Mapping[str, Any]):
    """The commands by name; one is imported when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(name)(getattr(import_module(f"polyseq.cli.{name}"), name))
        return typer.main.get_command(alone)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Group(TyperGroup):
    """A group that takes its commands from `_Commands`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()  # type: ignore[assignment]


app = typer.Typer(
    name="polyseq",
    cls=_Group,
    help="Run GGUF language models for many sequences at once.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"polyseq {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the program itself."""


def main() -> None:
    """Changes the world as asked; ends the process with an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # what a terminal's encoding cannot show is replaced, not fatal
            stream.reconfigure(errors="replace")
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except _UsageError as error:
        if "--json" in sys.argv[1:]:
            report_error("usage", error.format_message(), as_json=True)
        else:
            error.show()
        sys.exit(EXIT_USAGE)
    except typer.Abort:
        sys.exit(EXIT_INTERRUPTED)
    finally:
        gc.freeze()  # or the interpreter's end would look through all of a model for what the system frees at once
