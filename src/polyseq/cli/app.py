"""The `polyseq` program: its commands and what holds for all of them.

Enters: `sys.argv`. Leaves: an exit code. The commands themselves are in files of their own.
"""

from __future__ import annotations

from typing import Annotated

import typer

from polyseq import __version__
from polyseq.cli.generate import generate
from polyseq.cli.inspect import inspect
from polyseq.cli.pull import pull

app = typer.Typer(
    name="polyseq",
    help="Run GGUF language models for many sequences at once.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(generate)
app.command()(pull)
app.command()(inspect)


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
    app()
