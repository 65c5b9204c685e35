"""Step 1 for a simulation: rows made up from lengths, or read from text.

Enters: how long each sequence is, or a file's text. Leaves: a `Batch`. Sequences are what counts here, so a row made
from lengths has token 0, and the last row of each sequence asks for an output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from polyseq.batch import Batch
from polyseq.errors import BadColumn

_KEYS = {"token", "seq", "pos", "output", "span"}


def rows_of_lengths(lengths: Sequence[int], *, interleave: bool = False, n_shared: int = 0) -> Batch:
    """Pure. Sequence i has `lengths[i]` rows of its own, one sequence after the other, or in turn (`interleave`).

    Before them stand `n_shared` rows that belong to all sequences. Raises `BadColumn` for a negative length.
    """
    for name, value in (*((f"length {i}", n) for i, n in enumerate(lengths)), ("the shared prefix", n_shared)):
        if value < 0:
            raise BadColumn(f"{name} is {value}, it must be 0 or more", value=value, limit=0)
    counts = np.array(lengths, np.intp)
    seq = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(seq)) - np.repeat(np.cumsum(counts) - counts, counts)
    output = within == counts[seq] - 1
    if interleave:
        order = np.lexsort((seq, within))
        seq, output = seq[order], output[order]
    batch = Batch()
    if n_shared:
        batch.extend(np.zeros(n_shared, np.int32), seq=set(range(len(counts))))
    batch.extend(np.zeros(len(seq), np.int32), seq=seq, output=output)
    return batch


def rows_of_text(text: str, *, by_line: bool) -> Batch:
    """Pure. A batch written as JSON: a list of rows, or one row per line (`by_line`, JSONL).

    A row is an object; each key may be left out: `token` (0), `seq` (0; an id, or a list of ids), `pos` (continue the
    sequence), `output` (false), `span` (none; a number: with the rows beside it that have the same, it is one span).
    Raises `BadColumn` naming line or row.
    """
    rows = _lines(text) if by_line else _document(text)
    for i, row in enumerate(rows):
        _check_row(i, row)
    batch = Batch()
    for (span, given), group in groupby(rows, key=lambda row: (row.get("span"), row.get("pos") is not None)):
        part = list(group)
        batch.extend(
            [row.get("token", 0) for row in part],
            seq=[_seq_ids(row) for row in part] if span is None else _one_set(len(batch), part),
            pos=[row["pos"] for row in part] if given else None,
            output=[row.get("output", False) for row in part],
            span=span is not None,
        )
    return batch


def _one_set(row0: int, part: Sequence[Mapping[str, Any]]) -> set[int]:
    """The set that all rows of a span belong to. Raises `BadColumn`."""
    first = set(_seq_ids(part[0]))
    for i, row in enumerate(part, row0):
        if set(_seq_ids(row)) != first:
            raise BadColumn(f"row {i}: its span is of {sorted(first)}, it is of {sorted(_seq_ids(row))}", row=i)
    return first


def _document(text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadColumn(f"not JSON: {error}") from None
    if not isinstance(found, list):
        raise BadColumn("a batch in JSON is a list of rows, each an object")
    return found


def _lines(text: str) -> list[Any]:
    rows = []
    for i, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise BadColumn(f"line {i} is not JSON: {error}") from None
    return rows


def _check_row(i: int, row: object) -> None:
    if not isinstance(row, dict):
        raise BadColumn(f"row {i} is no object with keys {', '.join(sorted(_KEYS))}", row=i)
    unknown = sorted(set(row) - _KEYS)
    if unknown:
        raise BadColumn(f"row {i} has {', '.join(unknown)}; known keys are {', '.join(sorted(_KEYS))}", row=i)
    for name, kinds, wanted in (
        ("token", (int,), "an integer"),
        ("pos", (int, type(None)), "an integer"),
        ("span", (int, type(None)), "an integer"),
        ("output", (int, bool), "true or false"),
        ("seq", (int, list), "an id or a list of ids"),
    ):
        value = row.get(name, 0)
        if not isinstance(value, kinds) or (isinstance(value, bool) and name != "output"):
            raise BadColumn(f"row {i}: {name} is {value!r}, not {wanted}", row=i, value=str(value))
    if not all(type(s) is int for s in _seq_ids(row)):
        raise BadColumn(f"row {i}: seq is {row['seq']!r}, not an id or a list of ids", row=i)


def _seq_ids(row: Mapping[str, Any]) -> list[int]:
    seq = row.get("seq", 0)
    return seq if isinstance(seq, list) else [seq]
