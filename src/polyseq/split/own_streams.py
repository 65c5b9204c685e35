"""What cuts for memories with a stream per sequence refuse: rows that belong to several sequences."""

from __future__ import annotations

import numpy as np

from polyseq.batch.checked import CheckedBatch
from polyseq.errors import CoupledSequences


def refuse_shared_rows(batch: CheckedBatch) -> None:
    """Pure. Raises `CoupledSequences` naming the first row that several sequences share."""
    if not batch.coupled:
        return
    row = int(np.argmax(np.diff(batch.seq_offsets) > 1))
    ids = batch.seq_ids[batch.seq_offsets[row] : batch.seq_offsets[row + 1]]
    raise CoupledSequences(
        f"row {row} is shared by sequences {', '.join(map(str, ids))}, but here every sequence has a stream "
        "of its own; coupled sequences need a unified cache (unified=True)"
    )
