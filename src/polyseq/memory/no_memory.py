"""Step 4 for encoders: nothing is kept between calls, so every sequence must be whole in one ubatch.

Enters: a `CheckedBatch`. Leaves: ubatches of whole sequences; there is always room. Sequence operations find nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from polyseq.batch.checked import CheckedBatch
from polyseq.batch.positions import SeqRanges
from polyseq.errors import SplitError
from polyseq.lock import Lock
from polyseq.memory.cache_part import CachePart
from polyseq.memory.cell_map import CellMap
from polyseq.memory.kind import Example, Kind
from polyseq.memory.nothing_owed import NothingOwed
from polyseq.memory.plan import MemoryPlan
from polyseq.memory.reusable import Reusable, of_wanted
from polyseq.memory.saved import Placing, SavedPart
from polyseq.memory.seq_view import SeqView
from polyseq.memory.sequence_ops import check_seq_ids
from polyseq.memory.settings import MemorySettings
from polyseq.memory.slot import Slot
from polyseq.memory.views import Views
from polyseq.split import Equal, Seq, Simple, Strategy, Ubatch, Whole, split_all


@dataclass(frozen=True, slots=True)
class NoCells:
    """The slot of an ubatch that takes no cells."""

    kv: Slot | None = None


class NoMemory(NothingOwed):
    """No cells, no state; `views` says only which rows of an ubatch belong together."""

    copy_replaces = True
    why_no_shift = "nothing is kept between calls"
    strategy: Strategy = Whole()
    n_used = 0
    n_free = 0

    def __init__(self, *, n_seq_max: int, n_pos: int = 1) -> None:
        self.n_seq_max = n_seq_max
        self.n_pos = n_pos
        self.ranges = SeqRanges.empty(n_seq_max)
        self.parts: tuple[CachePart, ...] = ()
        self.lock = Lock()

    def init_batch(self, batch: CheckedBatch, n_ubatch: int) -> MemoryPlan[NoCells]:
        """Pure. Raises `SharedRow`, `SequenceTooLong`, and `SplitError` where another cut tears a sequence."""
        ubatches = tuple(split_all(batch, self.strategy, n_ubatch))
        _refuse_torn(batch, ubatches)
        return MemoryPlan(ubatches, (NoCells(),) * len(ubatches))

    def mark(self) -> None:
        """Pure. There is nothing to come back to."""

    def apply(self, ubatch: Ubatch, slot: NoCells) -> None:
        """Pure. Nothing is written."""

    def undo(self, mark: None, slots: Iterable[NoCells]) -> None:
        """Pure. Nothing was written."""

    def views(self, ubatch: Ubatch, slot: NoCells) -> Views:
        """Pure. Each row's sequence, by its index in `ubatch.seq_id_unq`."""
        return Views(seqs=SeqView(ubatch.n_seqs_unq, ubatch.seq_idx[ubatch.first_seq]))

    def saved(self, seq_ids: list[int]) -> tuple[SavedPart, ...]:
        """Pure. Nothing."""
        check_seq_ids(self.n_seq_max, *seq_ids)
        return ()

    def place_saved(self, parts: tuple[SavedPart, ...]) -> tuple[Placing, ...]:
        """Pure. Nowhere."""
        return ()

    def restore(self, parts: tuple[SavedPart, ...], placings: tuple[Placing, ...]) -> None:
        """Pure."""

    # ---- sequence operations: every sequence is empty ----------------------------------------------------

    def rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> bool:
        """Pure. True: nothing of it is left."""
        if seq_id != -1:
            check_seq_ids(self.n_seq_max, seq_id)
        return True

    def cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Pure."""
        check_seq_ids(self.n_seq_max, src, dst)

    def keep(self, seq_id: int) -> None:
        """Pure."""
        check_seq_ids(self.n_seq_max, seq_id)

    def add(self, seq_id: int, p0: int, p1: int, delta: int) -> None:
        """Pure."""
        check_seq_ids(self.n_seq_max, seq_id)

    def div(self, seq_id: int, p0: int, p1: int, d: int) -> None:
        """Pure."""
        check_seq_ids(self.n_seq_max, seq_id)

    def clear(self) -> None:
        """Pure."""

    def pos_min(self, seq_id: int) -> int:
        """-1: every sequence is empty."""
        check_seq_ids(self.n_seq_max, seq_id)
        return -1

    def pos_max(self, seq_id: int) -> int:
        """-1: every sequence is empty."""
        check_seq_ids(self.n_seq_max, seq_id)
        return -1

    def why_no_drop(self, seq_id: int, p0: int, p1: int) -> str:
        """Pure. There is nothing to take out."""
        check_seq_ids(self.n_seq_max, seq_id)
        return self.why_no_shift

    def reusable(self, seq_id: int, wanted: int) -> Reusable:
        """Pure. Nothing."""
        check_seq_ids(self.n_seq_max, seq_id)
        return of_wanted(0, wanted, self.why_no_shift)

    # ---- looking ---------------------------------------------------------------------------------------

    def map(self) -> CellMap:
        """Pure. No streams."""
        return CellMap(())

    def columns(self) -> dict[str, bytes]:
        """Pure. No metadata."""
        return {}

    def check(self) -> None:
        """Pure. Nothing can be wrong."""
        assert (np.asarray(self.ranges.pos_max) == -1).all()


def _make(s: MemorySettings) -> NoMemory:
    return NoMemory(n_seq_max=s.n_seq_max, n_pos=s.n_pos)


def _refuse_torn(batch: CheckedBatch, ubatches: Sequence[Ubatch]) -> None:
    """Pure. No sequence may need what an earlier ubatch computed. Raises `SplitError`."""
    last = np.full(batch.n_seq_max, -1)
    for i, ubatch in enumerate(ubatches):
        present = ubatch.seq_id_unq
        torn = present[last[present] >= 0]
        if len(torn):
            s = int(torn[0])
            raise SplitError(
                f"sequence {s} is cut over ubatches {last[s]} and {i}; without a memory it must be whole in one: "
                + _what_fits(batch)
            )
        last[present] = i


def _what_fits(batch: CheckedBatch) -> str:
    if batch.coupled:
        return f"rows are shared, so take strategy simple and n_ubatch {batch.n_tokens}"
    return f"take strategy seq and n_ubatch {int(np.diff(batch.set_offsets).max())} or more"


KIND = Kind(
    "none",
    (frozenset(),),
    lambda s: (),
    _make,
    (Example("none", (None,), (Whole(), Simple(), Equal(), Seq())),),
)
