"""What every kind of memory answers to: cut and place a batch, write it piece by piece, change sequences.

Enters: a `CheckedBatch`. Leaves: a `MemoryPlan` or `NoSlot`, then views of each ubatch. Its callers know no kinds: a
slot and a mark are the memory's own values, handed back to it as they came; all they look at is `slot.kv`, the cells
among those that keep every token (None: it has none such). Metadata only, no tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from polyseq.batch.checked import CheckedBatch
from polyseq.batch.positions import SeqRanges
from polyseq.errors import NoSlot
from polyseq.lock import Lock
from polyseq.memory.cache_part import CachePart
from polyseq.memory.cell_map import CellMap
from polyseq.memory.compaction import Move
from polyseq.memory.pending import Pending
from polyseq.memory.plan import MemoryPlan
from polyseq.memory.reusable import Reusable
from polyseq.memory.saved import Placing, SavedPart
from polyseq.memory.slot import HeldCells
from polyseq.memory.views import Views
from polyseq.split import Strategy, Ubatch


class Memory(Protocol):
    """Sequences of tokens, kept in parts. A running decode holds `lock`; sequence operations wait for it."""

    lock: Lock
    strategy: Strategy  # the cut it tries first

    @property
    def n_seq_max(self) -> int:
        """Sequences, ids 0 .. n_seq_max-1."""
        ...

    @property
    def n_pos(self) -> int:
        """Position values per row."""
        ...

    @property
    def parts(self) -> tuple[CachePart, ...]:
        """The cache tensors it needs."""
        ...

    @property
    def ranges(self) -> SeqRanges:
        """Position ranges per sequence; a view that follows the memory."""
        ...

    # ---- ask, then do ----------------------------------------------------------------------------------

    def init_batch(self, batch: CheckedBatch, n_ubatch: int) -> MemoryPlan[Any] | NoSlot:
        """Pure (what it tries it takes back). Cuts all of the batch and finds room for all of it, or says why not.

        Raises `SplitError` for a batch that this memory cannot cut.
        """
        ...

    def retry_batch(self, batch: CheckedBatch, n_ubatch: int) -> MemoryPlan[Any] | None:
        """Pure. After `NoSlot`: a plan that gives up what no query to come can see, None where that is no help."""
        ...

    def mark(self) -> Any:
        """Pure. What `undo` needs to take back everything applied from now on."""
        ...

    def in_use(self, mark: Any, slot: Any) -> tuple[HeldCells, ...]:
        """Pure. Cells of a slot not yet applied that held something at the mark, which computing overwrites."""
        ...

    def apply(self, ubatch: Ubatch, slot: Any) -> None:
        """Changes the memory: the ubatch takes its slot."""
        ...

    def undo(self, mark: Any, slots: Iterable[Any]) -> None:
        """Changes the memory back to the mark; `slots` are those that may have been applied since, even half."""
        ...

    def views(self, ubatch: Ubatch, slot: Any) -> Views:
        """Pure. What the rows of an applied ubatch may see."""
        ...

    def pending(self) -> Pending:
        """Pure. What must be done to the cache tensors before the next decode."""
        ...

    def copied(self) -> None:
        """Changes what is pending: the first copy has been done."""
        ...

    def settle(self) -> None:
        """Changes what is pending: all has been done, or is somebody else's to do."""
        ...

    def compaction(self) -> tuple[Move, ...]:
        """Pure. Which cells would fill the gaps between those in use; what they hold has to be copied first."""
        ...

    def moved(self, move: Move) -> None:
        """Changes the memory: the contents of a move have been copied."""
        ...

    # ---- saved and restored ------------------------------------------------------------------------------

    def saved(self, seq_ids: list[int]) -> tuple[SavedPart, ...]:
        """Pure. What these sequences hold, one for each of `parts`."""
        ...

    def place_saved(self, parts: tuple[SavedPart, ...]) -> tuple[Placing, ...] | NoSlot:
        """Pure. Where saved sequences, which must be empty here, would go; or why there is no room."""
        ...

    def restore(self, parts: tuple[SavedPart, ...], placings: tuple[Placing, ...]) -> None:
        """Changes the memory: saved sequences are held again; their cells have been written."""
        ...

    # ---- sequence operations: ranges [p0, p1), -1 = open; all raise `SequenceError` and then change nothing ------

    def rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> bool:
        """Changes the memory: removes positions of a sequence, of all sequences with -1."""
        ...

    def cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Changes the memory: `dst` gets positions of `src`."""
        ...

    @property
    def copy_replaces(self) -> bool:
        """Whether `cp` leaves nothing of what `dst` had; else that stays beside the copy."""
        ...

    def keep(self, seq_id: int) -> None:
        """Changes the memory: removes every other sequence from where this one is stored."""
        ...

    def add(self, seq_id: int, p0: int, p1: int, delta: int) -> None:
        """Changes the memory: shifts positions of a sequence."""
        ...

    def div(self, seq_id: int, p0: int, p1: int, d: int) -> None:
        """Changes the memory: divides positions of a sequence."""
        ...

    def clear(self) -> None:
        """Changes the memory: nothing is held, nothing pending."""
        ...

    def pos_min(self, seq_id: int) -> int:
        """The smallest position a sequence holds in every part, -1 if none."""
        ...

    def pos_max(self, seq_id: int) -> int:
        """The largest position a sequence holds, -1 if none."""
        ...

    # ---- looking ---------------------------------------------------------------------------------------

    @property
    def why_no_shift(self) -> str:
        """Why positions cannot be moved; empty: they can."""
        ...

    def why_torn(self, batch: CheckedBatch) -> str:
        """Pure. Why a sequence of the batch cannot be gone on with as it was left; empty: all can."""
        ...

    def why_no_drop(self, seq_id: int, p0: int, p1: int) -> str:
        """Pure. Why positions `[p0, p1)` cannot be taken out and what follows moved up; empty: they can."""
        ...

    def reusable(self, seq_id: int, wanted: int) -> Reusable:
        """Pure. How many of the positions `[0, wanted)` of a sequence can be gone on from, and why not all."""
        ...

    @property
    def n_used(self) -> int:
        """Cells in use, over all streams, of the part that keeps the most tokens."""
        ...

    @property
    def n_free(self) -> int:
        """Free cells of that part."""
        ...

    def map(self) -> CellMap:
        """Pure. The cells as runs; `print` it, or take its `to_json`."""
        ...

    def columns(self) -> dict[str, bytes]:
        """Pure. All metadata as bytes: two equal results mean that nothing changed."""
        ...

    def check(self) -> None:
        """Pure. Asserts the invariants; for tests."""
        ...
