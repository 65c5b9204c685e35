"""Which rows may be taken now without a sequence running backwards, where sequence sets overlap.

A row has to wait for an earlier unused row of another set that shares a sequence with it (tree drafts: `{0,1}`, then
`{0}` and `{1}`). Rows of the same set never wait for each other: a cut takes a set's rows in order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyseq.split.splitter import Splitter


def ready_rows(splitter: Splitter) -> NDArray[np.bool_]:
    """Pure. [n_tokens] True for unused rows that wait for no row of another set.

    Linear in the (row, sequence) pairs of the batch.
    """
    batch = splitter.batch
    rows = np.repeat(np.arange(batch.n_tokens), np.diff(batch.seq_offsets))
    seqs = batch.seq_ids
    open_pairs = ~splitter.used[rows]
    rows, seqs = rows[open_pairs], seqs[open_pairs]
    order = np.argsort(seqs.astype(np.uint8), kind="stable")
    rows, seqs = rows[order], seqs[order]
    starts = np.flatnonzero(np.concatenate(([True], seqs[1:] != seqs[:-1])))
    first = np.repeat(starts, np.diff(np.append(starts, len(rows))))
    # In each sequence only the leading run of rows with one set is free to go.
    other = batch.i_set[rows] != batch.i_set[rows[first]]
    seen = np.cumsum(other)
    blocked = seen - seen[first] > 0
    ready = ~splitter.used
    ready[rows[blocked]] = False
    return ready
