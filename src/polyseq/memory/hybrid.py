"""Step 4 for models with attention and running states: both parts, one cut, one outcome.

Enters: a `CheckedBatch`. Leaves: ubatches with cells and state cells for each, or `NoSlot`. A sequence operation that
one part cannot carry out is refused for both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from polyseq.batch.checked import CheckedBatch
from polyseq.batch.positions import SeqRanges
from polyseq.errors import NoSlot, SequenceError
from polyseq.memory.cache_part import CachePart
from polyseq.memory.cell_map import CellMap
from polyseq.memory.cells import CellsMark
from polyseq.memory.compaction import Move
from polyseq.memory.cuts import state_cut
from polyseq.memory.full import full_cache
from polyseq.memory.kind import SOME_KV, SOME_STATE, Example, Kind
from polyseq.memory.kv_cache import KvCache
from polyseq.memory.pending import Pending
from polyseq.memory.plan import MemoryPlan
from polyseq.memory.recurrent import Recurrent, RsMark, RsSlot, recurrent, rs_part
from polyseq.memory.reusable import Reusable
from polyseq.memory.saved import Placing, SavedPart
from polyseq.memory.settings import MemorySettings
from polyseq.memory.slot import HeldCells, Slot
from polyseq.memory.views import Views
from polyseq.split import Equal, Seq, Strategy, Ubatch, split_all


@dataclass(frozen=True, slots=True)
class HybridSlot:
    """What one ubatch takes of each part."""

    kv: Slot
    rs: RsSlot


class Hybrid:
    """A KV cache and running states of the same sequences (llama.cpp's `llama_memory_hybrid`)."""

    copy_replaces = True

    def __init__(self, kv: KvCache, rs: Recurrent, *, embeddings: bool = False) -> None:
        self.kv = kv
        self.rs = rs
        self.lock = kv.lock
        self.n_seq_max = kv.n_seq_max
        self.n_pos = kv.n_pos
        self.strategy: Strategy = state_cut(n_stream=kv.n_stream, n_rs_seq=rs.n_rs_seq, embeddings=embeddings)

    @property
    def parts(self) -> tuple[CachePart, ...]:
        """The cache tensors it needs."""
        return self.kv.parts + self.rs.parts

    @property
    def ranges(self) -> SeqRanges:
        """Position ranges per sequence, of the states: what is older cannot be gone back to."""
        return self.rs.ranges

    # ---- ask, then do ----------------------------------------------------------------------------------

    def init_batch(self, batch: CheckedBatch, n_ubatch: int) -> MemoryPlan[HybridSlot] | NoSlot:
        """Pure (what it tries it takes back). Raises `SplitError`, `CoupledSequences`. See `Recurrent.init_batch`."""
        ubatches = split_all(batch, self.strategy, n_ubatch)
        kv = self.kv.place(batch, ubatches)
        if isinstance(kv, NoSlot):
            return kv
        return MemoryPlan(tuple(ubatches), tuple(map(HybridSlot, kv, self.rs.place(batch, ubatches))))

    def retry_batch(self, batch: CheckedBatch, n_ubatch: int) -> None:
        """Pure. There is nothing to give up: see `KvCache.retry_batch`."""

    def mark(self) -> tuple[CellsMark, RsMark]:
        """Pure. What `undo` needs to take back everything applied from now on."""
        return self.kv.mark(), self.rs.mark()

    def in_use(self, mark: object, slot: HybridSlot) -> tuple[HeldCells, ...]:
        """Pure. None: neither part overwrites."""
        return ()

    def apply(self, ubatch: Ubatch, slot: HybridSlot) -> None:
        """Changes both parts: the ubatch takes its slot."""
        self.kv.apply(ubatch, slot.kv)
        self.rs.apply(ubatch, slot.rs)

    def undo(self, mark: tuple[CellsMark, RsMark], slots: Iterable[HybridSlot]) -> None:
        """Changes both parts back to the mark; `slots` are those that may have been applied since, even half."""
        self.kv.undo(mark[0], (slot.kv for slot in slots))
        self.rs.undo(mark[1], ())

    def views(self, ubatch: Ubatch, slot: HybridSlot) -> Views:
        """Pure. What the rows of an applied ubatch may see."""
        return Views(kv=self.kv.view(ubatch, slot.kv), rs=self.rs.view(ubatch, slot.rs))

    def pending(self) -> Pending:
        """Pure. What must be done to the cache tensors before the next decode."""
        return self.kv.pending()

    def copied(self) -> None:
        """Changes what is pending: the first copy has been done."""
        self.kv.copied()

    def settle(self) -> None:
        """Changes what is pending: all has been done, or is somebody else's to do."""
        self.kv.settle()

    def compaction(self) -> tuple[Move, ...]:
        """Pure. Which cells of the cache would fill the gaps between those in use."""
        return self.kv.compaction()

    def moved(self, move: Move) -> None:
        """Changes the cache: the contents of a move have been copied."""
        self.kv.moved(move)

    # ---- saved and restored: part by part ------------------------------------------------------------------

    def saved(self, seq_ids: list[int]) -> tuple[SavedPart, ...]:
        """Pure. What these sequences hold of each part."""
        return self.kv.saved(seq_ids) + self.rs.saved(seq_ids)

    def place_saved(self, parts: tuple[SavedPart, ...]) -> tuple[Placing, ...] | NoSlot:
        """Pure. Where saved sequences would go, which must be empty here."""
        kv = self.kv.place_saved(parts[:1])
        if isinstance(kv, NoSlot):
            return kv
        rs = self.rs.place_saved(parts[1:])
        return rs if isinstance(rs, NoSlot) else kv + rs

    def restore(self, parts: tuple[SavedPart, ...], placings: tuple[Placing, ...]) -> None:
        """Changes both parts: saved sequences are held again."""
        self.kv.restore(parts[:1], placings[:1])
        self.rs.restore(parts[1:], placings[1:])

    # ---- sequence operations: each part says no before either changes ----------------------------------------

    def rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> bool:
        """Changes both parts. See `Recurrent.rm`."""
        with self.lock:
            self.rs.after_rm(seq_id, p0, p1)
            self.kv.rm(seq_id, p0, p1)
            return self.rs.rm(seq_id, p0, p1)

    def cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Changes both parts: `dst` becomes a copy of `src`, as far as `Recurrent.cp` can; what it had goes."""
        with self.lock:
            left = self.rs.after_cp(src, dst, p0, p1)
            if src == dst or left is None:
                return
            if self.kv.n_stream == 1:
                self.kv.rm(dst)
            self.kv.cp(src, dst, p0, p1)
            self.rs.cp(src, dst, p0, p1)

    def keep(self, seq_id: int) -> None:
        """Changes both parts: every other sequence goes from the cells that this one shares, and so do its states."""
        with self.lock:
            self.kv.keep(seq_id)
            if self.kv.n_stream == 1:
                self.rs.keep(seq_id)

    def add(self, seq_id: int, p0: int, p1: int, delta: int) -> None:
        """Changes both parts: a whole sequence gets other positions, and with it those whose cells are all its own.

        Raises `SequenceError` as `Recurrent.add`, and where another sequence shares some of its cells only.
        """
        with self.lock:
            self.rs.after_add(seq_id, p0, p1, delta)
            moving = [seq_id] if delta == 0 else self._whole_sharers(seq_id)
            self.kv.add(seq_id, p0, p1, delta)
            for s in moving:
                self.rs.add(s, p0, p1, delta)

    def _whole_sharers(self, seq_id: int) -> list[int]:
        """Pure. The sequence and all that hold only cells of it. Raises `SequenceError` for one that holds more."""
        cells = self.kv.cells
        stream, held = cells.held_by(seq_id)
        sharers = [int(s) for s in cells.seq_ids_in(stream, held)]
        for s in sharers:
            if not held[cells.held_by(s)[1]].all():
                raise SequenceError(
                    f"add: sequence {s} shares cells with sequence {seq_id} and holds others too; moving only the "
                    "shared ones would tear it"
                )
        return sharers or [seq_id]

    def div(self, seq_id: int, p0: int, p1: int, d: int) -> None:
        """Raises `SequenceError` where it would change anything. See `Recurrent.div`."""
        self.rs.div(seq_id, p0, p1, d)

    def clear(self) -> None:
        """Changes both parts: nothing is held, nothing pending."""
        with self.lock:
            self.kv.clear()
            self.rs.clear()

    def pos_min(self, seq_id: int) -> int:
        """The oldest position that a sequence can go back to, -1 if it holds nothing."""
        return self.rs.pos_min(seq_id)

    def pos_max(self, seq_id: int) -> int:
        """The last position of a sequence, -1 if none."""
        return self.rs.pos_max(seq_id)

    def why_torn(self, batch: CheckedBatch) -> str:
        """Pure. What one part cannot be cut back to, neither is."""
        return ""

    def why_no_drop(self, seq_id: int, p0: int, p1: int) -> str:
        """Pure. Why positions `[p0, p1)` cannot be taken out and what follows moved up."""
        return self.rs.why_no_drop(seq_id, p0, p1)

    def reusable(self, seq_id: int, wanted: int) -> Reusable:
        """Pure. See `Recurrent.reusable`: the cache holds every position that a state has taken in."""
        return self.rs.reusable(seq_id, wanted)

    # ---- looking ---------------------------------------------------------------------------------------

    @property
    def why_no_shift(self) -> str:
        """Why positions cannot be moved."""
        return self.rs.why_no_shift

    @property
    def n_used(self) -> int:
        """Cells in use in the KV cache."""
        return self.kv.n_used

    @property
    def n_free(self) -> int:
        """Free cells of the KV cache."""
        return self.kv.n_free

    def map(self) -> CellMap:
        """Pure. The KV cache's streams, then the state cells."""
        return CellMap(self.kv.map().streams + self.rs.map().streams)

    def columns(self) -> dict[str, bytes]:
        """Pure. All metadata as bytes."""
        kv = {f"kv.{name}": column for name, column in self.kv.columns().items()}
        return kv | {f"rs.{name}": column for name, column in self.rs.columns().items()}

    def check(self) -> None:
        """Pure. Asserts the invariants, and that both parts hold the same sequences; for tests."""
        self.kv.check()
        self.rs.check()
        assert (self.kv.ranges.pos_max == self.rs.ranges.pos_max).all()


def _parts(s: MemorySettings) -> tuple[CachePart, ...]:
    return CachePart("kv", s.n_stream, s.n_cells, s.layers_in("kv")), rs_part(s)


def _make(s: MemorySettings) -> Hybrid:
    return Hybrid(full_cache(s), recurrent(s), embeddings=s.embeddings)


KIND = Kind(
    "hybrid",
    (frozenset({"kv", "rs"}),),
    _parts,
    _make,
    (Example("hybrid", (SOME_KV, SOME_STATE), (Equal(), Seq())),),
)
