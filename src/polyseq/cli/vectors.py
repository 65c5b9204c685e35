"""Vectors written: JSON lines, a NumPy file or a Parquet file, by the name of the file.

Enters: rows and what was refused. Leaves: a file, or lines on stdout. A text that was refused keeps its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np
import typer

from polyseq.embeddings import Embedded


def write_lines(done: Embedded, out: IO[str]) -> None:
    """Changes `out`: a JSON object per text, `embedding` or `error` beside its `index`."""
    refused = {r.index: r.reason for r in done.refused}
    for i, row in enumerate(done.rows):
        told: dict[str, Any] = {"index": i}
        told |= {"error": refused[i]} if i in refused else {"embedding": row.tolist()}
        out.write(json.dumps(told) + "\n")


def check_out(path: Path | None) -> None:
    """Pure. Raises typer.BadParameter for a name that says no format, or a format that cannot be written here."""
    if path is None:
        return
    if path.suffix not in WRITERS:
        raise typer.BadParameter(f"{path} is none of *{', *'.join(WRITERS)}")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise typer.BadParameter(f"{path} needs pyarrow: pip install 'polyseq[parquet]'")


def write_vectors(done: Embedded, path: Path) -> None:
    """Changes the disk: the file is there whole or not at all."""
    made = path.with_name(f".{path.name}.part")
    try:
        WRITERS[path.suffix](done, made)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


def _jsonl(done: Embedded, path: Path) -> None:
    with path.open("w", encoding="utf-8") as out:
        write_lines(done, out)


def _npy(done: Embedded, path: Path) -> None:
    with path.open("wb") as out:
        np.save(out, done.rows)


def _parquet(done: Embedded, path: Path) -> None:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    refused = {r.index: r.reason for r in done.refused}
    n = len(done.rows)
    table = arrow.table(
        {
            "index": arrow.array(np.arange(n)),
            "embedding": arrow.array(
                [None if i in refused else row for i, row in enumerate(done.rows)], arrow.list_(arrow.float32())
            ),
            "error": arrow.array([refused.get(i) for i in range(n)], arrow.string()),
        }
    )
    parquet.write_table(table, path)


WRITERS: Mapping[str, Callable[[Embedded, Path], None]] = MappingProxyType(
    {".jsonl": _jsonl, ".npy": _npy, ".parquet": _parquet}
)
