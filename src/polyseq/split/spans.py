"""Spans: rows that see each other in both directions, so that no cut may come between them.

A span's rows are neighbours in the batch and belong to the same set, so they are neighbours in any order of rows that a
cut takes them in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyseq.batch.checked import CheckedBatch
from polyseq.errors import SpanTooLong


def n_whole(span: NDArray[np.int32] | None, rows: NDArray[np.intp], n: int) -> int:
    """Pure. How many of the first n rows may be taken without tearing a span.

    rows [m]: in the order they are taken, with the one after the first n where more are left. span: of the batch.
    """
    if span is None or n == 0 or len(rows) <= n or span[rows[n]] < 0:
        return min(n, len(rows))
    before = span[rows[:n]] == span[rows[n]]
    return int(before.argmax()) if before[-1] else n


def refuse_long_spans(batch: CheckedBatch, n_ubatch: int) -> None:
    """Pure. Raises `SpanTooLong` for the longest span, where it has more rows than one ubatch holds."""
    if batch.span is None:
        return
    first, n = np.unique(batch.span[batch.span >= 0], return_counts=True)
    k = int(n.argmax())
    if n[k] <= n_ubatch:
        return
    row, last = int(first[k]), int(first[k] + n[k]) - 1
    pos = batch.pos[0]
    raise SpanTooLong(
        f"rows {row}..{last} are a span of sequence {batch.first_seq[row]}, positions {pos[row]}..{pos[last]}: its "
        f"{n[k]} rows see each other in both directions and must be computed at once, but n_ubatch is {n_ubatch}; set "
        f"it to {n[k]} or more",
        least=int(n[k]),
    )
