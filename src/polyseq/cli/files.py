"""Files on the command line: what cannot be read or written is a matter of what was typed.

Enters: a path, or `-` for stdin. Leaves: text, or `typer.BadParameter` in the same words for every command.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """While the body reads that file. Raises typer.BadParameter."""
    try:
        yield
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}") from None


@contextmanager
def writing() -> Iterator[None]:
    """While the body writes files, one of which an error names. Raises typer.BadParameter."""
    try:
        yield
    except OSError as error:
        raise typer.BadParameter(f"{error.filename} cannot be written: {error.strerror}") from None


def read_text(file: Path) -> str:
    """The text of a file (`-` = stdin), UTF-8. Raises typer.BadParameter."""
    with reading(file):
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{file} is not UTF-8: byte {error.start} is {data[error.start]:#04x}") from None
