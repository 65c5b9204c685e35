"""The packed cut: flat order, up to n_ubatch rows, each row in its own sequence's stream. Ours, not llama.cpp's.

For streams whose backend takes rows that are not rectangular: ragged lengths then cost no short ubatches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from polyseq.batch.checked import CheckedBatch
from polyseq.split import reason
from polyseq.split.own_streams import refuse_shared_rows
from polyseq.split.rows import n_rows
from polyseq.split.splitter import Cut, Splitter


@dataclass(frozen=True, slots=True)
class Packed:
    """The next unused rows in batch order. `n_seqs` counts the distinct sequence sets; `n_seq_tokens` is 0."""

    name: ClassVar[str] = "packed"

    def check(self, batch: CheckedBatch, n_ubatch: int) -> None:
        """Pure. Raises `CoupledSequences` where a row is shared."""
        refuse_shared_rows(batch)

    def next_cut(self, splitter: Splitter, n_ubatch: int) -> Cut:
        """Pure."""
        rows = splitter.next_rows(n_ubatch)
        n_seqs = int(np.count_nonzero(np.bincount(splitter.batch.seq_ids[rows])))  # one sequence per row
        ended = reason.FULL if n_rows(rows) == n_ubatch else reason.SPAN
        return Cut(rows, n_seqs=n_seqs, n_seq_tokens=0, equal_seqs=False, reason=ended)
