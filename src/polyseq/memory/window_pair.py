"""Step 4 for models with sliding windows: one cache for layers that see every token, one for layers that see the last.

Enters: a `CheckedBatch`. Leaves: ubatches with a slot in each cache, or `NoSlot`: both take the same ubatches, or
neither changes. The window cache is small, since cells that no query still to come can see are taken again.
"""

from __future__ import annotations

import numpy as np

from polyseq.batch.checked import CheckedBatch
from polyseq.errors import NoSlot
from polyseq.memory.cache_layer import KvLayer
from polyseq.memory.cache_part import CachePart
from polyseq.memory.full import full_cache
from polyseq.memory.kind import SOME_KV, SOME_WINDOW, Example, Kind
from polyseq.memory.kv_cache import KvCache
from polyseq.memory.pair import Pair, PairSlot
from polyseq.memory.pending import Pending
from polyseq.memory.plan import MemoryPlan
from polyseq.memory.reusable import Reusable
from polyseq.memory.settings import MemorySettings
from polyseq.memory.slot import Slot
from polyseq.memory.views import Views
from polyseq.split import Equal, Seq, Simple, Strategy, Ubatch, split_all

WINDOW_PAD = 256  # llama.cpp rounds the window cache up to this many cells


class WindowPair(Pair[Slot]):
    """A full cache and a window cache of the same sequences (llama.cpp's `llama_kv_cache_iswa`).

    Unified: the simple cut, and where the window cache cannot hold that, the equal one, which takes from every
    sequence in turn.
    """

    def __init__(self, kv: KvCache, kv_swa: KvCache) -> None:
        super().__init__(kv, kv_swa, kv.strategy)
        self.kv_swa = kv_swa

    # ---- ask, then do ----------------------------------------------------------------------------------

    def init_batch(self, batch: CheckedBatch, n_ubatch: int) -> MemoryPlan[PairSlot[Slot]] | NoSlot:
        """Pure (what it tries it takes back). Raises `CoupledSequences` where rows are shared and streams are not."""
        return self._placed_any_way(batch, n_ubatch, shared=False)

    def retry_batch(self, batch: CheckedBatch, n_ubatch: int) -> MemoryPlan[PairSlot[Slot]] | None:
        """Pure (what it tries it takes back). As `init_batch`, giving up window cells that several sequences share and
        none of them will see again; those stay otherwise, as in llama.cpp.
        """
        if self.kv.n_stream > 1:
            return None
        plan = self._placed_any_way(batch, n_ubatch, shared=True)
        return None if isinstance(plan, NoSlot) else plan

    def _placed_any_way(
        self, batch: CheckedBatch, n_ubatch: int, *, shared: bool
    ) -> MemoryPlan[PairSlot[Slot]] | NoSlot:
        plan = self._placed(batch, self.strategy, n_ubatch, shared=shared)
        if isinstance(plan, NoSlot) and isinstance(self.strategy, Simple):
            again = self._placed(batch, Equal(), n_ubatch, shared=shared)
            return plan if isinstance(again, NoSlot) else again
        return plan

    def _placed(
        self, batch: CheckedBatch, strategy: Strategy, n_ubatch: int, *, shared: bool
    ) -> MemoryPlan[PairSlot[Slot]] | NoSlot:
        ubatches = split_all(batch, strategy, n_ubatch)
        kv = self.kv.place(batch, ubatches)
        if isinstance(kv, NoSlot):
            return kv
        kv_swa = self.kv_swa.place(batch, ubatches, shared=shared)
        if isinstance(kv_swa, NoSlot):
            return kv_swa
        return MemoryPlan(tuple(ubatches), tuple(map(PairSlot, kv, kv_swa)))

    def views(self, ubatch: Ubatch, slot: PairSlot[Slot]) -> Views:
        """Pure. What the rows of an applied ubatch may see."""
        return Views(kv=self.kv.view(ubatch, slot.kv), kv_swa=self.kv_swa.view(ubatch, slot.beside))

    def pending(self) -> Pending:
        """Pure. As `Pair.pending`; where either part is owed a rotation, both are told theirs."""
        kv, kv_swa = self.kv.pending(), self.kv_swa.pending()
        shifts = {}
        if kv.shifts or kv_swa.shifts:
            shifts = {part.name: cache.cells.shift.copy() for part, cache in zip(self.parts, self._both, strict=True)}
        return Pending(kv.copies + kv_swa.copies, shifts)

    # ---- sequence operations: the full cache refuses for both, before anything changed ----------------------

    @property
    def _both(self) -> tuple[KvCache, KvCache]:
        return self.kv, self.kv_swa

    def rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> bool:
        """Changes both caches. See `KvCache.rm`."""
        with self.lock:
            for cache in self._both:
                cache.rm(seq_id, p0, p1)
            return True

    def cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Changes both caches. See `KvCache.cp`."""
        with self.lock:
            for cache in self._both:
                cache.cp(src, dst, p0, p1)

    @property
    def copy_replaces(self) -> bool:
        """As in either cache."""
        return self.kv.copy_replaces

    def keep(self, seq_id: int) -> None:
        """Changes both caches. See `KvCache.keep`."""
        with self.lock:
            for cache in self._both:
                cache.keep(seq_id)

    def add(self, seq_id: int, p0: int, p1: int, delta: int) -> None:
        """Changes both caches. See `KvCache.add`."""
        with self.lock:
            for cache in self._both:
                cache.add(seq_id, p0, p1, delta)

    def div(self, seq_id: int, p0: int, p1: int, d: int) -> None:
        """Changes both caches. See `KvCache.div`."""
        with self.lock:
            for cache in self._both:
                cache.div(seq_id, p0, p1, d)

    # ---- looking ---------------------------------------------------------------------------------------

    @property
    def why_no_shift(self) -> str:
        """Why positions cannot be moved; empty: they can."""
        return self.kv.why_no_shift

    def why_torn(self, batch: CheckedBatch) -> str:
        """Pure. Names a sequence of the batch that was cut back to before what its window holds; empty: none was.

        Its rows would be computed from half of their past.
        """
        kv, swa = self.kv.ranges, self.kv_swa.ranges
        oldest_seen = np.maximum(kv.pos_min, kv.pos_max + 2 - self.kv_swa.cells.n_swa)
        torn = (kv.pos_max >= 0) & ((swa.pos_max != kv.pos_max) | (swa.pos_min > oldest_seen))
        found = batch.seq_ids[torn[batch.seq_ids]]
        if not len(found):
            return ""
        s = int(found[0])
        return (
            f"sequence {s} was cut back to position {kv.pos_max[s]}, and to go on it needs its window from "
            f"{oldest_seen[s]} on, which was let go; remove it (rm({s})) and read it anew, or ask `reusable` before"
        )

    def why_no_drop(self, seq_id: int, p0: int, p1: int) -> str:
        """Pure. Why positions `[p0, p1)` cannot be taken out and what follows moved up; empty: they can.

        The next query's window may then reach back over the gap, to what the window cache has let go.
        """
        n_before = self.kv_swa.cells.n_swa - 1 - max(self.pos_max(seq_id) + 1 - p1, 0)  # that it sees before the gap
        oldest = self.kv_swa.pos_min(seq_id)
        if n_before > 0 and oldest > max(p0 - n_before, 0):
            return (
                f"the window cache of sequence {seq_id} holds positions from {oldest} on, but after the gap the next "
                f"query would see {max(p0 - n_before, 0)}..{p0 - 1} too; take out less"
            )
        return self.kv.why_no_drop(seq_id, p0, p1)

    def reusable(self, seq_id: int, wanted: int) -> Reusable:
        """Pure. All that the full cache holds from position 0 on, if the window before it is still there."""
        found = self.kv.reusable(seq_id, wanted)
        n = found.n
        seen = range(max(0, n + 1 - self.kv_swa.cells.n_swa), n)
        stream, held = self.kv_swa.cells.held_by(seq_id)
        missing = set(seen) - set(self.kv_swa.cells.pos[stream, held].tolist())
        if not missing:
            return found
        return Reusable(
            0,
            f"to go on at position {n}, sequence {seq_id} needs its window {seen.start}..{n - 1}, of which "
            f"{min(missing)} was let go",
        )


# ---- how it is made --------------------------------------------------------------------------------------


def window_of(s: MemorySettings) -> int:
    """Pure. The widest window of any layer: what its cells must cover."""
    return max(layer.n_swa for layer in s.layers if isinstance(layer, KvLayer))


def n_window_cells(s: MemorySettings) -> int:
    """Pure. Cells of each stream of the window cache: every sequence's window, and the ubatch that is being written."""
    if s.swa_full:
        return s.n_cells
    wanted = window_of(s) * (s.n_seq_max if s.unified else 1) + s.n_ubatch
    return min(s.n_cells, -(-wanted // WINDOW_PAD) * WINDOW_PAD)


def _parts(s: MemorySettings) -> tuple[CachePart, ...]:
    return (
        CachePart("kv", s.n_stream, s.n_cells, s.layers_in("kv")),
        CachePart("kv_swa", s.n_stream, n_window_cells(s), s.layers_in("kv_swa")),
    )


def _make(s: MemorySettings) -> WindowPair:
    window = KvCache(
        n_cells=n_window_cells(s),
        n_seq_max=s.n_seq_max,
        unified=s.unified,
        n_pos=s.n_pos,
        packed=s.packed,
        embeddings=s.embeddings,
        n_swa=window_of(s),
        layers=s.layers_in("kv_swa"),
    )
    return WindowPair(full_cache(s), window)


KIND = Kind(
    "window",
    (frozenset({"kv", "kv_swa"}), frozenset({"kv_swa"})),
    _parts,
    _make,
    (Example("window", (SOME_KV, SOME_WINDOW), (Simple(), Equal(), Seq())),),
)
