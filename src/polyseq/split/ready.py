"""Which rows may be taken now without a sequence running backwards, where sequence sets overlap.

A row has to wait for an earlier unused row of another set that shares a sequence with it (tree drafts: `{0,1}`, then
`{0}` and `{1}`). Rows of the same set never wait for each other: a cut takes a set's rows in order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyseq.batch.checked import CheckedBatch


def blockers(batch: CheckedBatch) -> NDArray[np.intp]:
    """Pure. [n_pairs] for each (row, sequence) pair the last earlier row of another set in that sequence, -1 = none.

    Since every cut keeps each sequence in order, a row is ready once these rows are used: what lies before them was
    used before them.
    """
    rows = np.repeat(np.arange(batch.n_tokens), np.diff(batch.seq_offsets))
    order = np.argsort(batch.seq_ids.astype(np.uint8), kind="stable")
    row, seq, i_set = rows[order], batch.seq_ids[order], batch.i_set[rows[order]]
    new_seq = np.concatenate(([True], seq[1:] != seq[:-1]))
    # A run of rows with one set waits for the last row of the run before it, if that is of the same sequence.
    run_starts = np.flatnonzero(new_seq | np.concatenate(([True], i_set[1:] != i_set[:-1])))
    run_blocker = np.where(new_seq[run_starts], -1, row[np.maximum(run_starts - 1, 0)])
    found = np.empty(len(rows), np.intp)
    found[order] = np.repeat(run_blocker, np.diff(np.append(run_starts, len(rows))))
    return found


def waiting_rows(batch: CheckedBatch, blocker: NDArray[np.intp], used: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Pure. [n_tokens] True for rows that wait for a row of another set. Linear in the pairs of the batch."""
    waits = ~np.append(used, True)[blocker]  # -1 finds the True at the end
    return np.logical_or.reduceat(waits, batch.seq_offsets[:-1])
