"""The `polyseq` program: its commands and what holds for all of them.

Enters: `sys.argv`. Leaves: an exit code. The commands themselves are in files of their own, each loaded when it is
asked for: `plan` answers without what a model needs.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from io import TextIOWrapper
from types import MappingProxyType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from polyseq import __version__
from polyseq.cli.reporting import EXIT_INTERRUPTED, EXIT_USAGE, report_error

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "generate": "Answer all prompts at once.",
        "embed": "Turn every line of a file into a vector.",
        "rerank": "Rank the lines of a file by how well they answer a query.",
        "plan": "Show how a batch would be cut into ubatches and placed in memory.",
        "trace": "Sum up a recorded trace.",
        "tune": "Measure this machine with a model and choose n_batch, n_ubatch and the rest.",
        "verify": "Tell rounding from a defect: the same prompts in every way they can be run.",
        "pull": "Fetch a model into the cache and print its path.",
        "inspect": "Show what is in a model file, and what memory a context would take.",
        "warmup": "Compile what a model needs, once, and keep it for the next start.",
    }
)  # each the function of that name in `polyseq.cli.<name>`, with its docstring: a list of them all loads none

_MANY_OBJECTS = 100_000  # a start makes more, and nearly all stay: looking through them every 700 took 0.1 s
# OpenBLAS's threads look for work for so many (as a power of two) cycles. Its own 26 is 0.1 s of a processor at every
# start, NumPy's import, which has none; a matrix product follows the last one sooner than this.
_BLAS_WAITS = ("OPENBLAS_THREAD_TIMEOUT", "20")
_UsageError: Any = typer.BadParameter.__mro__[1]  # what the parser raises; typer gives it no name of its own


def command(name: str) -> Any:
    """Pure. One of `COMMANDS`, imported."""
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name)(getattr(import_module(f"polyseq.cli.{name}"), name))
    return typer.main.get_command(alone)


class _Group(TyperGroup):
    """A group that knows of its commands what a list of them says, and imports the one that is run."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=said) for name, said in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Pure. The command that is run, by `args[0]`, and what is left for it. Raises what `TyperGroup` raises."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and command(args[0]), rest


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
    gc.set_threshold(_MANY_OBJECTS)
    os.environ.setdefault(*_BLAS_WAITS)
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
