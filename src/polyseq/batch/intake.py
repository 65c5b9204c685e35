"""Step 1: what callers write (lists, ranges, sets, arrays) as columns of the batch's own dtypes.

Pure. A value that cannot be one is refused by name here; whether it is in range is the check's business.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyseq.errors import BadColumn, BadSeqId, BadToken, NegativePosition, NoContent

MOST = np.iinfo(np.int32).max
AUTO_POS = np.iinfo(np.int32).min  # "continue this sequence"; no caller can write it, see int_column

SeqIds = int | Iterable[int]
SeqColumn = int | frozenset[int] | set[int] | Sequence[int] | Sequence[Iterable[int]] | NDArray[np.integer]


def n_rows(
    token_col: NDArray[np.int32] | None,
    embd_rows: NDArray[np.float32] | None,
    state_rows: NDArray[np.float32] | None,
    seq: SeqColumn,
) -> int:
    """From the first column given; rows without content are counted by `seq` and refused by the check."""
    for column in (token_col, embd_rows, state_rows):
        if column is not None:
            return len(column)
    if isinstance(seq, int | np.integer | set | frozenset):
        raise NoContent("neither tokens nor embeddings were given")
    return _n_entries(seq)


def _n_entries(seq: object) -> int:
    if isinstance(seq, str | bytes) or not isinstance(seq, Sequence | np.ndarray) or getattr(seq, "ndim", 1) == 0:
        raise BadColumn(f"seq must be an id, a set of ids, or a list of these, not {type(seq).__name__}")
    return len(seq)


def as_array(name: str, values: object) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise BadColumn(f"{name} is no column: its entries have different shapes") from error


def flag_column(output: bool | ArrayLike, n: int) -> NDArray[np.bool_] | bool:
    if isinstance(output, bool):
        return output
    flags = as_array("output", output)
    if flags.dtype.kind not in "biu" and flags.size:
        raise BadColumn(f"output must be one flag or {n} flags, not {flags.dtype}", value=str(flags.dtype))
    if flags.ndim > 1 or (flags.ndim == 1 and len(flags) != n):
        raise BadColumn(f"output has shape {flags.shape} where {n} rows are added", value=flags.shape, limit=n)
    return flags.astype(np.bool_, copy=False)


def int_column(
    name: str,
    values: object,
    row0: int,
    error: type[BadToken | NegativePosition | BadSeqId],
    *,
    ndim: tuple[int, ...] = (1,),
    rows: NDArray[np.intp] | None = None,
) -> NDArray[np.int32]:
    """As i32; a value that i32 cannot hold (or that means AUTO_POS) is refused by name.

    rows: the row of each entry, counted from `row0`; None = entry i is of row i.
    """
    column = as_array(name, values)
    if column.size == 0:
        column = column.astype(np.int32)
    if column.ndim not in ndim or column.dtype.kind not in "iu":
        raise BadColumn(f"{name} must be a column of integers, not {column.dtype} {column.shape}", value=column.shape)
    if column.dtype == np.int32 and (error is not NegativePosition or not column.size or _least(column) > AUTO_POS):
        return column
    bad = ((column <= AUTO_POS) | (column > MOST)).reshape(-1)
    if bad.any():
        i = int(bad.argmax())
        value = int(column.reshape(-1)[i])
        row = row0 + (i % column.shape[-1] if rows is None else int(rows[i]))
        raise error(f"row {row}: {name} value {value} is far out of range", row=row, value=value, limit=MOST)
    return column.astype(np.int32, copy=False)


def _least(column: NDArray[np.int32]) -> int:
    return int(column.reshape(-1)[column.argmin()])


def ids_of_one_row(seq: SeqIds, row: int) -> tuple[int, ...]:
    if isinstance(seq, int | np.integer):
        return (int(seq),)
    try:
        return tuple(sorted({operator.index(s) for s in seq}))
    except TypeError as error:
        raise BadColumn(f"row {row}: seq must be an id or a set of ids, not {seq!r}", row=row) from error


def seq_columns(seq: SeqColumn, n: int, row0: int) -> tuple[NDArray[np.int32] | int, NDArray[np.int32] | int]:
    """(ids per row, ids of all rows) from any of the forms that `extend` takes; an int where it is that for all."""
    if isinstance(seq, int | np.integer):
        return 1, int(int_column("seq", [seq], row0, BadSeqId)[0])
    if isinstance(seq, set | frozenset):
        ids = int_column("seq", list(seq), row0, BadSeqId, rows=np.zeros(len(seq), np.intp))
        return len(ids), int(ids[0]) if len(ids) == 1 else np.tile(np.sort(ids), n)
    if _n_entries(seq) != n:
        raise BadColumn(f"seq has {len(seq)} entries where {n} rows are added", value=len(seq), limit=n)
    if isinstance(seq, np.ndarray) or not n or isinstance(seq[0], int | np.integer):
        return 1, int_column("seq", seq, row0, BadSeqId)
    try:
        sets = [s if isinstance(s, Sequence) else tuple(s) for s in seq]  # type: ignore[arg-type]
    except TypeError as error:
        raise BadColumn("seq mixes single ids with sets of ids; give every row a set, or none") from error
    counts = np.fromiter(map(len, sets), np.int32, n)
    ids_of_all = list(chain.from_iterable(sets))
    return counts, int_column("seq", ids_of_all, row0, BadSeqId, rows=np.repeat(np.arange(n), counts))
