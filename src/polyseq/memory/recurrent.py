"""Step 4 for models with a running state: one state per sequence, and snapshots to go back to.

Enters: a `CheckedBatch`. Leaves: ubatches with the state cells they start from and those that take the new states.
A state always goes to a spare cell, so that undoing a call is a matter of metadata, and a sequence is copied by
reference: whoever writes next writes elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from polyseq.batch.checked import CheckedBatch
from polyseq.batch.positions import SeqRanges
from polyseq.errors import SequenceError
from polyseq.lock import Lock
from polyseq.memory.cache_layer import CacheLayer
from polyseq.memory.cache_part import CachePart
from polyseq.memory.cell_map import CellMap
from polyseq.memory.cuts import state_cut
from polyseq.memory.kind import SOME_STATE, Example, Kind
from polyseq.memory.nothing_owed import NothingOwed
from polyseq.memory.plan import MemoryPlan
from polyseq.memory.restore_states import place_states, restore_states, saved_states
from polyseq.memory.reusable import Reusable, of_wanted
from polyseq.memory.rs_view import RsView
from polyseq.memory.running import Running
from polyseq.memory.saved import Placing, SavedPart
from polyseq.memory.sequence_ops import check_seq_ids
from polyseq.memory.settings import MemorySettings
from polyseq.memory.state_map import state_map
from polyseq.memory.state_slot import RsSlot, find_state_slot, n_state_cells
from polyseq.memory.states import States, StatesMark
from polyseq.memory.surely import surely
from polyseq.memory.views import Views
from polyseq.split import Equal, Seq, Strategy, Ubatch, split_all


class Recurrent(NothingOwed):
    """Running states (llama.cpp's `llama_memory_recurrent`), with `n_rs_seq` positions to go back to."""

    copy_replaces = True
    why_no_shift = "a running state holds its whole past at once; nothing can be taken out of its middle"

    def __init__(
        self,
        *,
        n_seq_max: int,
        n_rs_seq: int = 0,
        n_pos: int = 1,
        embeddings: bool = False,
        layers: Mapping[int, CacheLayer] | None = None,
    ) -> None:
        self.n_seq_max = n_seq_max
        self.n_rs_seq = n_rs_seq
        self.n_pos = n_pos
        self.n_cells = n_state_cells(n_seq_max=n_seq_max, n_rs_seq=n_rs_seq)
        self.strategy: Strategy = state_cut(n_stream=n_seq_max, n_rs_seq=n_rs_seq, embeddings=embeddings)
        self.parts: tuple[CachePart, ...] = (CachePart("rs", 1, self.n_cells, layers or {}),)
        self.states = States(n_seq_max=n_seq_max, n_cells=self.n_cells)
        self.lock = Lock()

    @property
    def ranges(self) -> SeqRanges:
        """From the oldest position that a sequence can go back to, to its last; a view that follows the memory."""
        return self.states.ranges

    # ---- ask, then do ----------------------------------------------------------------------------------

    def init_batch(self, batch: CheckedBatch, n_ubatch: int) -> MemoryPlan[RsSlot]:
        """Pure (what it tries it takes back). There is always room.

        Raises `SplitError` for an n_ubatch that would tear the last `1 + n_rs_seq` rows of a sequence, and
        `CoupledSequences` for a row shared by sequences.
        """
        ubatches = split_all(batch, self.strategy, n_ubatch)
        return MemoryPlan(tuple(ubatches), self.place(batch, ubatches))

    def place(self, batch: CheckedBatch, ubatches: Sequence[Ubatch]) -> tuple[RsSlot, ...]:
        """Pure (what it tries it takes back). State cells for each ubatch of a batch.

        Raises `CoupledSequences` where sequences share a row but not a state.
        """
        mark = self.mark()
        kept = self.states.in_use()  # no cell of before the call is written: undoing it writes nothing back
        last_row = np.zeros(self.n_seq_max, np.intp)
        np.maximum.at(last_row, batch.seq_ids, np.repeat(np.arange(batch.n_tokens), np.diff(batch.seq_offsets)))
        slots: list[RsSlot] = []
        try:
            for ubatch in ubatches:
                taken = kept | self.states.in_use()
                slot = find_state_slot(self.states, ubatch, last_row=last_row, taken=taken, n_rs_seq=self.n_rs_seq)
                slots.append(slot)
                self.apply(ubatch, slot)
        finally:
            surely(lambda: self.undo(mark, slots))
        return tuple(slots)

    def mark(self) -> StatesMark:
        """Pure. What `undo` needs to take back everything applied from now on."""
        return self.states.mark()

    def apply(self, ubatch: Ubatch, slot: RsSlot) -> None:
        """Changes the memory: each sequence's state moves on to the cells of the slot."""
        n = ubatch.n_seq_tokens
        pos = ubatch.pos[0].reshape(-1, n)
        for i in range(ubatch.n_seqs):
            kept = slot.dst[i] >= 0
            newest = tuple(zip(pos[i, kept].tolist(), slot.dst[i, kept].tolist(), strict=True))[::-1]
            for s in ubatch.row_seq_ids(i * n):
                before = self.states.running.get(s) or Running(int(pos[i, 0]), ())
                self.states.put(s, before.moved_on(newest, self.n_rs_seq if slot.ends[i] else 0))

    def undo(self, mark: StatesMark, slots: Iterable[RsSlot]) -> None:
        """Changes the memory back to the mark."""
        self.states.undo(mark)

    def views(self, ubatch: Ubatch, slot: RsSlot) -> Views:
        """Pure. Where each sequence starts, and which states are kept."""
        return Views(rs=self.view(ubatch, slot))

    def view(self, ubatch: Ubatch, slot: RsSlot) -> RsView:
        """Pure. See `views`."""
        return RsView(ubatch.n_seqs, ubatch.n_seq_tokens, slot.src, slot.dst)

    # ---- saved and restored ------------------------------------------------------------------------------

    def saved(self, seq_ids: list[int]) -> tuple[SavedPart, ...]:
        """Pure. The states that these sequences hold, each once."""
        check_seq_ids(self.n_seq_max, *seq_ids)
        return (saved_states(self.states, self.parts[0].name, seq_ids),)

    def place_saved(self, parts: tuple[SavedPart, ...]) -> tuple[Placing, ...]:
        """Pure. See `place_states`: there is always room."""
        (part,) = parts
        return (place_states(self.states, part, n_rs_seq=self.n_rs_seq),)

    def restore(self, parts: tuple[SavedPart, ...], placings: tuple[Placing, ...]) -> None:
        """Changes the memory: saved sequences are held again."""
        (part,), (placing,) = parts, placings
        restore_states(self.states, part, placing)

    # ---- sequence operations ---------------------------------------------------------------------------

    def rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> bool:
        """Changes the memory: a sequence goes, or goes back to a position that a snapshot was kept of; all with -1.

        Raises `SequenceError` for any other range, naming the positions it can go back to; then nothing changes.
        """
        with self.lock:
            for s, left in self.after_rm(seq_id, p0, p1).items():
                self.states.put(s, left)
            return True

    def after_rm(self, seq_id: int, p0: int, p1: int) -> dict[int, Running | None]:
        """Pure. What `rm` would leave of each sequence it changes. Raises `SequenceError`."""
        if seq_id != -1:
            check_seq_ids(self.n_seq_max, seq_id)
        found = [seq_id] if seq_id in self.states.running else list(self.states.running) if seq_id == -1 else []
        return {s: self.states.running[s].without(s, p0, p1) for s in found}

    def cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Changes the memory: `dst` becomes a copy of `src`, by reference, up to a position it can go back to.

        Raises `SequenceError` where the range leaves out the beginning, or ends where no snapshot was kept.
        """
        with self.lock:
            left = self.after_cp(src, dst, p0, p1)
            if src != dst and left is not None:
                self.states.put(dst, left)

    def after_cp(self, src: int, dst: int, p0: int, p1: int) -> Running | None:
        """Pure. What `cp` would make of `dst`, None: there is nothing to copy. Raises `SequenceError`."""
        check_seq_ids(self.n_seq_max, src, dst)
        if src not in self.states.running:
            return None
        running = self.states.running[src]
        if p0 > running.start:
            raise SequenceError(
                f"sequence {src} runs from position {running.start}; its state cannot be had without the positions "
                f"before {p0}"
            )
        return running if p1 < 0 else running.without(src, p1, -1)

    def keep(self, seq_id: int) -> None:
        """Changes the memory: every other sequence goes."""
        with self.lock:
            check_seq_ids(self.n_seq_max, seq_id)
            for s in [s for s in self.states.running if s != seq_id]:
                self.states.put(s, None)

    def add(self, seq_id: int, p0: int, p1: int, delta: int) -> None:
        """Changes the memory: a whole sequence gets other positions; its state does not depend on them.

        Raises `SequenceError` for a part of a sequence, or a position below 0 or too large.
        """
        with self.lock:
            left = self.after_add(seq_id, p0, p1, delta)
            if left is not None:
                self.states.put(seq_id, left)

    def after_add(self, seq_id: int, p0: int, p1: int, delta: int) -> Running | None:
        """Pure. What `add` would leave. Raises `SequenceError`."""
        check_seq_ids(self.n_seq_max, seq_id)
        running = self.states.running.get(seq_id)
        if running is None or delta == 0 or not running.touches(p0, p1):
            return running
        if not running.covered_by(p0, p1):
            raise SequenceError(f"add: sequence {seq_id} can only be moved as a whole, {running}: {self.why_no_shift}")
        if running.start + delta < 0 or running.pos_max + delta > np.iinfo(np.int32).max:
            raise SequenceError(f"add: positions of sequence {seq_id}, {running}, cannot be moved by {delta}")
        snapshots = tuple((pos + delta, cell) for pos, cell in running.snapshots)
        return replace(running, start=running.start + delta, snapshots=snapshots)

    def div(self, seq_id: int, p0: int, p1: int, d: int) -> None:
        """Raises `SequenceError` where it would change anything: several tokens cannot become one."""
        check_seq_ids(self.n_seq_max, seq_id)
        running = self.states.running.get(seq_id)
        if d != 1 and running is not None and running.touches(p0, p1):
            raise SequenceError(f"div: {self.why_no_shift}")

    def clear(self) -> None:
        """Changes the memory: nothing is held."""
        with self.lock:
            self.states.undo({})

    def pos_min(self, seq_id: int) -> int:
        """The oldest position that a sequence can go back to, -1 if it holds nothing."""
        check_seq_ids(self.n_seq_max, seq_id)
        return int(self.states.pos_min[seq_id])

    def pos_max(self, seq_id: int) -> int:
        """The last position of a sequence, -1 if none."""
        check_seq_ids(self.n_seq_max, seq_id)
        return int(self.states.pos_max[seq_id])

    def why_no_drop(self, seq_id: int, p0: int, p1: int) -> str:
        """Pure. Why positions `[p0, p1)` cannot be taken out and what follows moved up."""
        check_seq_ids(self.n_seq_max, seq_id)
        return self.why_no_shift

    def reusable(self, seq_id: int, wanted: int) -> Reusable:
        """Pure. The newest state that has taken in no more than what is wanted."""
        check_seq_ids(self.n_seq_max, seq_id)
        running = self.states.running.get(seq_id)
        if running is None or running.start > 0:
            return of_wanted(0, wanted, f"sequence {seq_id} does not hold position 0")
        n = max((pos + 1 for pos, _ in running.snapshots if pos < wanted), default=0)
        states = ", ".join(str(pos) for pos, _ in running.snapshots)
        return of_wanted(n, wanted, f"sequence {seq_id} has a state after positions {states} only (see n_rs_seq)")

    # ---- looking ---------------------------------------------------------------------------------------

    @property
    def n_used(self) -> int:
        """State cells in use."""
        return len(self.states.in_use())

    @property
    def n_free(self) -> int:
        """Spare state cells."""
        return self.n_cells - self.n_used

    def map(self) -> CellMap:
        """Pure. One stream of state cells; a cell's position is that of the last token it has taken in."""
        return CellMap((state_map(self.states.running, self.n_cells),))

    def columns(self) -> dict[str, bytes]:
        """Pure. All metadata as bytes."""
        return self.states.columns()

    def check(self) -> None:
        """Pure. Asserts the invariants; for tests."""
        self.states.check(self.n_rs_seq)


def recurrent(s: MemorySettings) -> Recurrent:
    """Pure. An empty memory for the layers that keep a running state."""
    return Recurrent(
        n_seq_max=s.n_seq_max,
        n_rs_seq=s.n_rs_seq,
        n_pos=s.n_pos,
        embeddings=s.embeddings,
        layers=s.layers_in("rs"),
    )


def rs_part(s: MemorySettings) -> CachePart:
    """Pure. The state cells."""
    n_cells = n_state_cells(n_seq_max=s.n_seq_max, n_rs_seq=s.n_rs_seq)
    return CachePart("rs", 1, n_cells, s.layers_in("rs"))


KIND = Kind(
    "recurrent",
    (frozenset({"rs"}),),
    lambda s: (rs_part(s),),
    recurrent,
    (Example("recurrent", (SOME_STATE,), (Equal(sequential=True), Seq())),),
)
