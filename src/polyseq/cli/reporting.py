"""How a command ends when it does not simply finish.

Enters: whatever a command raises. Leaves: one clear line on stderr (with `--json` one JSON object on stdout)
and an exit code. A traceback is left to what nobody foresaw.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import typer

from polyseq.errors import PolyseqError, PolyseqWarning, SamplingError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT
EXIT_PIPE_CLOSED = 141  # 128 + SIGPIPE


@contextmanager
def reporting(*, as_json: bool) -> Iterator[None]:
    """Turns foreseen errors of a command's body into words and `typer.Exit`."""
    try:
        yield
        sys.stdout.flush()  # a closed pipe shows here rather than at the interpreter's end
    except BrokenPipeError:
        # the reader has gone; let nothing else try to reach it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_PIPE_CLOSED) from None
    except KeyboardInterrupt:
        report_error("interrupted", "interrupted", as_json=as_json)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except typer.BadParameter as error:
        report_error("usage", error.message, as_json=as_json)
        raise typer.Exit(EXIT_USAGE) from None
    except SamplingError as error:
        report_error(error.code, str(error), as_json=as_json)
        raise typer.Exit(EXIT_USAGE) from None
    except PolyseqError as error:
        report_error(error.code, str(error), as_json=as_json, facts=_facts(error), advice=_advice(error))
        raise typer.Exit(EXIT_FAILED) from None
    except OSError as error:  # a full disk, a stream that is not there
        report_error("io", str(error), as_json=False)
        raise typer.Exit(EXIT_FAILED) from None


@contextmanager
def notes_of_warnings() -> Iterator[list[str]]:
    """The body's own warnings as sentences, in a list that is filled when it ends; other warnings pass."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PolyseqWarning)
        yield notes
    for warning in caught:
        if issubclass(warning.category, PolyseqWarning):
            notes.append(str(warning.message))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


@contextmanager
def no_warnings() -> Iterator[None]:
    """Leaves Python's warnings out where the command prints the same notes itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PolyseqWarning)
        yield


def report_error(
    code: str, message: str, *, as_json: bool, facts: dict[str, object] | None = None, advice: str | None = None
) -> None:
    """Prints one error, and what would help, in the form the caller asked for."""
    if as_json:
        told = {"code": code, "message": message, **(facts or {})}
        print_json({"error": told if advice is None else {**told, "advice": advice}})
        return
    typer.echo(f"polyseq: {message}", err=True)
    if advice is not None:
        typer.echo(f"what would help: {advice}", err=True)


def print_json(value: object) -> None:
    """Prints one JSON object on stdout, readable and in plain ASCII so that any terminal encoding takes it."""
    typer.echo(json.dumps(value, indent=2))


def _facts(error: PolyseqError) -> dict[str, object]:
    """The numbers an error carries: row, seq_id, needed, free and the like."""
    return {name: value for name, value in vars(error).items() if isinstance(value, int | float | str)}


def _advice(error: PolyseqError) -> str | None:
    """None where there is no change that one could make."""
    advice = import_module("polyseq.explain.advice").advise(error)  # only here: most commands end well
    return advice.text if advice.changes else None
