"""Two memories of the same sequences as one: both take the same ubatches, or neither changes.

What is here needs no knowledge of what the second one is: the answers of both put together, in the order of their
parts. How ubatches are cut and placed, and what a sequence operation may do, is said by the kinds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from polyseq.batch.positions import SeqRanges
from polyseq.errors import NoSlot
from polyseq.memory.cache_part import CachePart
from polyseq.memory.cell_map import CellMap
from polyseq.memory.cells import CellsMark
from polyseq.memory.compaction import Move
from polyseq.memory.kv_cache import KvCache
from polyseq.memory.memory import Memory
from polyseq.memory.pending import Pending
from polyseq.memory.saved import Placing, SavedPart
from polyseq.memory.slot import HeldCells, Slot
from polyseq.split import Strategy, Ubatch

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class PairSlot(Generic[S]):
    """What one ubatch takes of each."""

    kv: Slot
    beside: S


PairMark = tuple[CellsMark, Any]


class Pair(Generic[S]):
    """A cache that keeps every token, and a second memory beside it, which is asked for ranges: what it has let go
    cannot be gone back to.
    """

    def __init__(self, kv: KvCache, beside: Memory, strategy: Strategy) -> None:
        self.kv = kv
        self._beside = beside
        self.lock = kv.lock
        self.n_seq_max = kv.n_seq_max
        self.n_pos = kv.n_pos
        self.strategy = strategy

    @property
    def parts(self) -> tuple[CachePart, ...]:
        """The cache tensors it needs."""
        return self.kv.parts + self._beside.parts

    @property
    def ranges(self) -> SeqRanges:
        """Position ranges per sequence, of the second part."""
        return self._beside.ranges

    # ---- ask, then do ----------------------------------------------------------------------------------

    def mark(self) -> PairMark:
        """Pure. What `undo` needs to take back everything applied from now on."""
        return self.kv.mark(), self._beside.mark()

    def in_use(self, mark: PairMark, slot: PairSlot[S]) -> tuple[HeldCells, ...]:
        """Pure. Cells of either part that held something at the mark and are taken again."""
        return self.kv.in_use(mark[0], slot.kv) + self._beside.in_use(mark[1], slot.beside)

    def apply(self, ubatch: Ubatch, slot: PairSlot[S]) -> None:
        """Changes both parts: the ubatch takes its slot."""
        self.kv.apply(ubatch, slot.kv)
        self._beside.apply(ubatch, slot.beside)

    def undo(self, mark: PairMark, slots: Iterable[PairSlot[S]]) -> None:
        """Changes both parts back to the mark; `slots` are those that may have been applied since, even half."""
        slots = tuple(slots)
        self.kv.undo(mark[0], (slot.kv for slot in slots))
        self._beside.undo(mark[1], (slot.beside for slot in slots))

    def pending(self) -> Pending:
        """Pure. What must be done to the cache tensors before the next decode."""
        kv, beside = self.kv.pending(), self._beside.pending()
        return Pending(kv.copies + beside.copies, {**kv.shifts, **beside.shifts})

    def copied(self) -> None:
        """Changes what is pending: the first copy has been done."""
        (self.kv if self.kv.pending().copies else self._beside).copied()

    def settle(self) -> None:
        """Changes what is pending: all has been done, or is somebody else's to do."""
        self.kv.settle()
        self._beside.settle()

    def compaction(self) -> tuple[Move, ...]:
        """Pure. Which cells of either part would fill the gaps between those in use."""
        return self.kv.compaction() + self._beside.compaction()

    def moved(self, move: Move) -> None:
        """Changes the part of the move: its contents have been copied."""
        (self.kv if move.part == self.kv.part.name else self._beside).moved(move)

    # ---- saved and restored: part by part ------------------------------------------------------------------

    def saved(self, seq_ids: list[int]) -> tuple[SavedPart, ...]:
        """Pure. What these sequences hold of each part."""
        return self.kv.saved(seq_ids) + self._beside.saved(seq_ids)

    def place_saved(self, parts: tuple[SavedPart, ...]) -> tuple[Placing, ...] | NoSlot:
        """Pure. Where saved sequences would go, which must be empty here."""
        kv = self.kv.place_saved(parts[:1])
        if isinstance(kv, NoSlot):
            return kv
        beside = self._beside.place_saved(parts[1:])
        return beside if isinstance(beside, NoSlot) else kv + beside

    def restore(self, parts: tuple[SavedPart, ...], placings: tuple[Placing, ...]) -> None:
        """Changes both parts: saved sequences are held again."""
        self.kv.restore(parts[:1], placings[:1])
        self._beside.restore(parts[1:], placings[1:])

    # ---- sequences ---------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Changes both parts: nothing is held, nothing pending."""
        with self.lock:
            self.kv.clear()
            self._beside.clear()

    def pos_min(self, seq_id: int) -> int:
        """The oldest position that a sequence holds in both parts, -1 if none."""
        return self._beside.pos_min(seq_id)

    def pos_max(self, seq_id: int) -> int:
        """The last position that a sequence holds in both parts, -1 if none."""
        return self._beside.pos_max(seq_id)

    # ---- looking ---------------------------------------------------------------------------------------

    @property
    def n_used(self) -> int:
        """Cells in use of those that keep every token."""
        return self.kv.n_used

    @property
    def n_free(self) -> int:
        """Free cells of those that keep every token."""
        return self.kv.n_free

    def map(self) -> CellMap:
        """Pure. The streams of the first part, then those of the second."""
        return CellMap(self.kv.map().streams + self._beside.map().streams)

    def columns(self) -> dict[str, bytes]:
        """Pure. All metadata as bytes."""
        both = zip(self.parts, (self.kv, self._beside), strict=True)
        return {f"{part.name}.{name}": column for part, of in both for name, column in of.columns().items()}

    def check(self) -> None:
        """Pure. Asserts the invariants; for tests."""
        self.kv.check()
        self._beside.check()
