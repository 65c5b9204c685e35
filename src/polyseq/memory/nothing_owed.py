"""What a memory answers whose cache tensors are never owed anything: nothing is copied or moved, nothing given up."""

from __future__ import annotations

from polyseq.batch.checked import CheckedBatch
from polyseq.memory.compaction import Move
from polyseq.memory.pending import Pending
from polyseq.memory.slot import HeldCells


class NothingOwed:
    """A part of a memory's answers; see `Memory`."""

    def retry_batch(self, batch: CheckedBatch, n_ubatch: int) -> None:
        """Pure. There is nothing to give up: there is always room."""

    def in_use(self, mark: object, slot: object) -> tuple[HeldCells, ...]:
        """Pure. None: nothing that was held is overwritten."""
        return ()

    def why_torn(self, batch: CheckedBatch) -> str:
        """Pure. What is held of a sequence is held whole."""
        return ""

    def pending(self) -> Pending:
        """Pure. Never anything."""
        return Pending()

    def copied(self) -> None:
        """Pure."""

    def settle(self) -> None:
        """Pure."""

    def compaction(self) -> tuple[Move, ...]:
        """Pure. None."""
        return ()

    def moved(self, move: Move) -> None:
        """Pure."""
