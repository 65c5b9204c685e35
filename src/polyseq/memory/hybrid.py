"""Step 4 for models with attention and running states: both parts, one cut, one outcome.

Enters: a `CheckedBatch`. Leaves: ubatches with cells and state cells for each, or `NoSlot`. A sequence operation that
one part cannot carry out is refused for both.
"""

from __future__ import annotations

import numpy as np

from polyseq.batch.checked import CheckedBatch
from polyseq.errors import NoSlot, SavedStateError, SequenceError
from polyseq.memory.cache_part import CachePart
from polyseq.memory.cuts import state_cut
from polyseq.memory.full import full_cache
from polyseq.memory.kind import SOME_KV, SOME_STATE, Example, Kind
from polyseq.memory.kv_cache import KvCache
from polyseq.memory.pair import Pair, PairSlot
from polyseq.memory.plan import MemoryPlan
from polyseq.memory.recurrent import Recurrent, recurrent, rs_part
from polyseq.memory.reusable import Reusable
from polyseq.memory.saved import Placing, SavedPart
from polyseq.memory.settings import MemorySettings
from polyseq.memory.state_slot import RsSlot
from polyseq.memory.views import Views
from polyseq.split import Equal, Seq, Ubatch, split_all


class Hybrid(Pair[RsSlot]):
    """A KV cache and running states of the same sequences (llama.cpp's `llama_memory_hybrid`)."""

    copy_replaces = True

    def __init__(self, kv: KvCache, rs: Recurrent, *, embeddings: bool = False) -> None:
        super().__init__(kv, rs, state_cut(n_stream=kv.n_stream, n_rs_seq=rs.n_rs_seq, embeddings=embeddings))
        self.rs = rs

    # ---- ask, then do ----------------------------------------------------------------------------------

    def init_batch(self, batch: CheckedBatch, n_ubatch: int) -> MemoryPlan[PairSlot[RsSlot]] | NoSlot:
        """Pure (what it tries it takes back). Raises `SplitError`, `CoupledSequences`. See `Recurrent.init_batch`."""
        ubatches = split_all(batch, self.strategy, n_ubatch)
        kv = self.kv.place(batch, ubatches)
        if isinstance(kv, NoSlot):
            return kv
        return MemoryPlan(tuple(ubatches), tuple(map(PairSlot, kv, self.rs.place(batch, ubatches))))

    def retry_batch(self, batch: CheckedBatch, n_ubatch: int) -> None:
        """Pure. There is nothing to give up: see `KvCache.retry_batch`."""

    def views(self, ubatch: Ubatch, slot: PairSlot[RsSlot]) -> Views:
        """Pure. What the rows of an applied ubatch may see."""
        return Views(kv=self.kv.view(ubatch, slot.kv), rs=self.rs.view(ubatch, slot.beside))

    def place_saved(self, parts: tuple[SavedPart, ...]) -> tuple[Placing, ...] | NoSlot:
        """Pure. As `Pair.place_saved`. Raises `SavedStateError` where cells and state of a sequence end apart."""
        cells, states = (part.last_of_each(self.n_seq_max) for part in parts)
        apart = np.flatnonzero(cells != states)
        if len(apart):
            s = int(apart[0])
            raise SavedStateError(f"sequence {s} was saved with cells to p{cells[s]} and a state at p{states[s]}")
        return super().place_saved(parts)

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

    def check(self) -> None:
        """Pure. Asserts the invariants, and that both parts hold the same sequences; for tests."""
        super().check()
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
