"""Texts from a file, one per line, so that line i is text i of the answer.

Enters: a path, or `-` for stdin. Leaves: texts; an empty line is an empty text.
"""

from __future__ import annotations

import json
from pathlib import Path

import typer

from polyseq.cli.files import read_text


def read_texts(file: Path) -> list[str]:
    """Reads the file. In `.jsonl` each line is a JSON string or an object with `text`. Raises typer.BadParameter."""
    lines = read_text(file).split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise typer.BadParameter(f"{file} holds no line; one text per line is wanted")
    if file.suffix != ".jsonl":
        return [line.removesuffix("\r") for line in lines]
    return [_text(line, f"{file}, line {i}") for i, line in enumerate(lines, 1)]


def _text(line: str, where: str) -> str:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise typer.BadParameter(f"{where} is no JSON: {error}") from None
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise typer.BadParameter(f"{where} is neither a string nor an object with a string under 'text'")
    return text
