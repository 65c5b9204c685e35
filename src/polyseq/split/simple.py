"""The simple cut: flat order, up to n_ubatch rows; every row is a sequence set of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polyseq.batch.checked import CheckedBatch
from polyseq.split import reason
from polyseq.split.rows import n_rows
from polyseq.split.splitter import Cut, Splitter


@dataclass(frozen=True, slots=True)
class Simple:
    """The next unused rows in batch order."""

    name: ClassVar[str] = "simple"

    def check(self, batch: CheckedBatch, n_ubatch: int) -> None:
        """Pure. Any batch will do."""

    def next_cut(self, splitter: Splitter, n_ubatch: int) -> Cut:
        """Pure."""
        rows = splitter.next_rows(n_ubatch)
        n = n_rows(rows)
        ended = reason.FULL if n == n_ubatch else reason.SPAN
        return Cut(rows, n_seqs=n, n_seq_tokens=1, equal_seqs=False, reason=ended)
