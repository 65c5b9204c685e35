"""Step 4 for models with a running state: one state per sequence, and snapshots to go back to.

Enters: a `CheckedBatch`. Leaves: ubatches with the state cells they start from and those that take the new states.
A state always goes to a spare cell, so that undoing a call is a matter of metadata, and a sequence is copied by
reference: whoever writes next writes elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from polyseq.batch.checked import CheckedBatch
from polyseq.batch.positions import SeqRanges
from polyseq.errors import CoupledSequences, SavedStateError, SequenceError
from polyseq.memory.cache_layer import CacheLayer
from polyseq.memory.cache_part import CachePart
from polyseq.memory.cell_map import CellMap
from polyseq.memory.compaction import Move
from polyseq.memory.cuts import state_cut
from polyseq.memory.kind import SOME_STATE, Example, Kind
from polyseq.memory.pending import Pending
from polyseq.memory.plan import MemoryPlan
from polyseq.memory.reusable import Reusable, of_wanted
from polyseq.memory.rs_view import RsView
from polyseq.memory.running import Running
from polyseq.memory.saved import Placing, SavedPart
from polyseq.memory.sequence_ops import check_seq_ids
from polyseq.memory.settings import MemorySettings
from polyseq.memory.slot import HeldCells, Slot
from polyseq.memory.state_map import state_map
from polyseq.memory.views import Views
from polyseq.split import Equal, Seq, Strategy, Ubatch, split_all

RsMark = Mapping[int, Running]


@dataclass(frozen=True, slots=True)
class RsSlot:
    """The state cells of one ubatch, by sequence set."""

    src: NDArray[np.int32]  # [n_seqs] i32, -1: zeros
    dst: NDArray[np.int32]  # [n_seqs, n_seq_tokens] i32, -1: not kept
    ends: NDArray[np.bool_]  # [n_seqs] whether these are the set's last rows of the call
    kv: Slot | None = None


def n_state_cells(*, n_seq_max: int, n_rs_seq: int) -> int:
    """Pure. Enough for any call: what all sequences hold before it and after it, and one state under way for each."""
    return n_seq_max * (2 * (1 + n_rs_seq) + 1)


class Recurrent:
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
        self.lock = threading.RLock()
        self._running: dict[int, Running] = {}
        self._pos_min = np.full(n_seq_max, -1, np.int32)
        self._pos_max = np.full(n_seq_max, -1, np.int32)

    @property
    def ranges(self) -> SeqRanges:
        """From the oldest position that a sequence can go back to, to its last; a view that follows the memory."""
        views = self._pos_min.view(), self._pos_max.view()
        for view in views:
            view.flags.writeable = False
        return SeqRanges(*views)

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
        kept = self._cells_in_use()  # no cell of before the call is written, so that undoing it writes nothing back
        last_row = np.zeros(self.n_seq_max, np.intp)
        np.maximum.at(last_row, batch.seq_ids, np.repeat(np.arange(batch.n_tokens), np.diff(batch.seq_offsets)))
        slots: list[RsSlot] = []
        try:
            for ubatch in ubatches:
                slots.append(self._slot(ubatch, last_row, kept | self._cells_in_use()))
                self.apply(ubatch, slots[-1])
        finally:
            self.undo(mark, slots)
        return tuple(slots)

    def _slot(self, ubatch: Ubatch, last_row: NDArray[np.intp], taken: set[int]) -> RsSlot:
        spare = iter(cell for cell in range(self.n_cells) if cell not in taken)
        src = np.full(ubatch.n_seqs, -1, np.int32)
        dst = np.full((ubatch.n_seqs, ubatch.n_seq_tokens), -1, np.int32)
        ends = np.zeros(ubatch.n_seqs, np.bool_)
        for i in range(ubatch.n_seqs):
            seq_ids = ubatch.row_seq_ids(i * ubatch.n_seq_tokens)
            last = (i + 1) * ubatch.n_seq_tokens - 1
            if ubatch.row_seq_ids(last) != seq_ids:
                raise CoupledSequences(
                    f"rows shared by sequences {', '.join(map(str, seq_ids))} and rows of some of them come together "
                    "here, but their running states differ; give each sequence rows of its own"
                )
            src[i] = self._shared_state(seq_ids)
            ends[i] = (last_row[seq_ids] == ubatch.batch_idxs[last]).any()
            n_kept = min(1 + self.n_rs_seq, ubatch.n_seq_tokens) if ends[i] else 1
            dst[i, -n_kept:] = [next(spare) for _ in range(n_kept)]
        return RsSlot(src, dst, ends)

    def _shared_state(self, seq_ids: Sequence[int]) -> int:
        """The cell of the newest state, which all these sequences must have in common; -1: they are empty."""
        cells = {self._running[s].cell if s in self._running else -1 for s in seq_ids}
        if len(cells) > 1:
            raise CoupledSequences(
                f"sequences {', '.join(map(str, seq_ids))} share a row, but their running states differ; copy one to "
                "the others first, or give each a row of its own"
            )
        return cells.pop()

    def retry_batch(self, batch: CheckedBatch, n_ubatch: int) -> None:
        """Pure. There is nothing to give up: there is always room."""

    def mark(self) -> RsMark:
        """Pure. What `undo` needs to take back everything applied from now on."""
        return dict(self._running)

    def in_use(self, mark: object, slot: RsSlot) -> tuple[HeldCells, ...]:
        """Pure. None: states go to spare cells."""
        return ()

    def apply(self, ubatch: Ubatch, slot: RsSlot) -> None:
        """Changes the memory: each sequence's state moves on to the cells of the slot."""
        n = ubatch.n_seq_tokens
        pos = ubatch.pos[0].reshape(-1, n)
        for i in range(ubatch.n_seqs):
            kept = slot.dst[i] >= 0
            newest = tuple(zip(pos[i, kept].tolist(), slot.dst[i, kept].tolist(), strict=True))[::-1]
            for s in ubatch.row_seq_ids(i * n):
                before = self._running.get(s) or Running(int(pos[i, 0]), ())
                self._put(s, before.moved_on(newest, self.n_rs_seq if slot.ends[i] else 0))

    def undo(self, mark: RsMark, slots: Iterable[RsSlot]) -> None:
        """Changes the memory back to the mark."""
        self._running = dict(mark)
        self._pos_min.fill(-1)
        self._pos_max.fill(-1)
        for seq_id, running in mark.items():
            self._pos_min[seq_id], self._pos_max[seq_id] = running.pos_min, running.pos_max

    def views(self, ubatch: Ubatch, slot: RsSlot) -> Views:
        """Pure. Where each sequence starts, and which states are kept."""
        return Views(rs=self.view(ubatch, slot))

    def view(self, ubatch: Ubatch, slot: RsSlot) -> RsView:
        """Pure. See `views`."""
        return RsView(ubatch.n_seqs, ubatch.n_seq_tokens, slot.src, slot.dst)

    def pending(self) -> Pending:
        """Pure. Never anything: copies are by reference."""
        return Pending()

    def copied(self) -> None:
        """Pure."""

    def settle(self) -> None:
        """Pure."""

    def compaction(self) -> tuple[Move, ...]:
        """Pure. None: where a state lies costs nothing."""
        return ()

    def moved(self, move: Move) -> None:
        """Pure."""

    # ---- saved and restored ------------------------------------------------------------------------------

    def saved(self, seq_ids: list[int]) -> tuple[SavedPart, ...]:
        """Pure. The states that these sequences hold, each once."""
        check_seq_ids(self.n_seq_max, *seq_ids)
        held = [(s, pos, cell) for s in seq_ids if s in self._running for pos, cell in self._running[s].snapshots]
        cells = sorted({(cell, pos) for _, pos, cell in held})
        index = {place: i for i, place in enumerate(cells)}
        starts = np.full(self.n_seq_max, -1, np.int32)
        for s in seq_ids:
            starts[s] = self._running[s].start if s in self._running else -1
        of_cell = np.array(cells, np.int32).reshape(-1, 2)
        pairs = np.array([(index[cell, pos], s) for s, pos, cell in held], np.int32).reshape(-1, 2)
        return (
            SavedPart(
                "rs",
                pos=of_cell[:, 1],
                entry=pairs[:, 0],
                seq=pairs[:, 1],
                streams=np.zeros(len(cells), np.int32),
                cells=of_cell[:, 0],
                heads=np.zeros(1, np.int32),
                starts=starts,
            ),
        )

    def place_saved(self, parts: tuple[SavedPart, ...]) -> tuple[Placing, ...]:
        """Pure. Spare cells, of which there are enough, for the states that can be gone back to here.

        Raises `SavedStateError` for a sequence whose states do not follow its first token.
        """
        (part,) = parts
        starts = np.append(part.starts, -1)[np.minimum(part.seq, len(part.starts))]
        if not ((starts >= 0) & (starts <= part.pos[part.entry])).all():
            raise SavedStateError(f"part {part.name}: states and first tokens of sequences do not go together")
        newest = np.full(self.n_seq_max, -1, np.int32)
        np.maximum.at(newest, part.seq, part.pos[part.entry])
        kept = newest[part.seq] - part.pos[part.entry] <= self.n_rs_seq
        entry = np.unique(part.entry[kept]).astype(np.intp)
        taken = self._cells_in_use()
        spare = np.array([c for c in range(self.n_cells) if c not in taken], np.intp)[: len(entry)]
        return (Placing("rs", entry, np.zeros(len(entry), np.intp), spare, as_saved=False),)

    def restore(self, parts: tuple[SavedPart, ...], placings: tuple[Placing, ...]) -> None:
        """Changes the memory: saved sequences are held again."""
        (part,), (placing,) = parts, placings
        place = dict(zip(placing.entry.tolist(), placing.cells.tolist(), strict=True))
        for s in np.unique(part.seq).tolist():
            mine = [int(e) for e in part.entry[part.seq == s] if int(e) in place]
            snapshots = sorted(((int(part.pos[e]), place[e]) for e in mine), reverse=True)
            self._put(s, Running(int(part.starts[s]), tuple(snapshots)))

    # ---- sequence operations ---------------------------------------------------------------------------

    def rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> bool:
        """Changes the memory: a sequence goes, or goes back to a position that a snapshot was kept of; all with -1.

        Raises `SequenceError` for any other range, naming the positions it can go back to; then nothing changes.
        """
        with self.lock:
            for s, left in self.after_rm(seq_id, p0, p1).items():
                self._put(s, left)
            return True

    def after_rm(self, seq_id: int, p0: int, p1: int) -> dict[int, Running | None]:
        """Pure. What `rm` would leave of each sequence it changes. Raises `SequenceError`."""
        if seq_id != -1:
            check_seq_ids(self.n_seq_max, seq_id)
        found = [seq_id] if seq_id in self._running else list(self._running) if seq_id == -1 else []
        return {s: self._running[s].without(s, p0, p1) for s in found}

    def cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Changes the memory: `dst` becomes a copy of `src`, by reference, up to a position it can go back to.

        Raises `SequenceError` where the range leaves out the beginning, or ends where no snapshot was kept.
        """
        with self.lock:
            left = self.after_cp(src, dst, p0, p1)
            if src != dst and left is not None:
                self._put(dst, left)

    def after_cp(self, src: int, dst: int, p0: int, p1: int) -> Running | None:
        """Pure. What `cp` would make of `dst`, None: there is nothing to copy. Raises `SequenceError`."""
        check_seq_ids(self.n_seq_max, src, dst)
        if src not in self._running:
            return None
        running = self._running[src]
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
            for s in [s for s in self._running if s != seq_id]:
                self._put(s, None)

    def add(self, seq_id: int, p0: int, p1: int, delta: int) -> None:
        """Changes the memory: a whole sequence gets other positions; its state does not depend on them.

        Raises `SequenceError` for a part of a sequence, or a position below 0 or too large.
        """
        with self.lock:
            self._put_if_held(seq_id, self.after_add(seq_id, p0, p1, delta))

    def after_add(self, seq_id: int, p0: int, p1: int, delta: int) -> Running | None:
        """Pure. What `add` would leave. Raises `SequenceError`."""
        check_seq_ids(self.n_seq_max, seq_id)
        running = self._running.get(seq_id)
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
        running = self._running.get(seq_id)
        if d != 1 and running is not None and running.touches(p0, p1):
            raise SequenceError(f"div: {self.why_no_shift}")

    def clear(self) -> None:
        """Changes the memory: nothing is held."""
        with self.lock:
            self.undo({}, ())

    def pos_min(self, seq_id: int) -> int:
        """The oldest position that a sequence can go back to, -1 if it holds nothing."""
        check_seq_ids(self.n_seq_max, seq_id)
        return int(self._pos_min[seq_id])

    def pos_max(self, seq_id: int) -> int:
        """The last position of a sequence, -1 if none."""
        check_seq_ids(self.n_seq_max, seq_id)
        return int(self._pos_max[seq_id])

    def _put_if_held(self, seq_id: int, running: Running | None) -> None:
        if seq_id in self._running:
            self._put(seq_id, running)

    def _put(self, seq_id: int, running: Running | None) -> None:
        if running is None:
            self._running.pop(seq_id, None)
            self._pos_min[seq_id] = self._pos_max[seq_id] = -1
        else:
            self._running[seq_id] = running
            self._pos_min[seq_id], self._pos_max[seq_id] = running.pos_min, running.pos_max

    def why_torn(self, batch: CheckedBatch) -> str:
        """Pure. A state is kept whole or not at all."""
        return ""

    def why_no_drop(self, seq_id: int, p0: int, p1: int) -> str:
        """Pure. Why positions `[p0, p1)` cannot be taken out and what follows moved up."""
        check_seq_ids(self.n_seq_max, seq_id)
        return self.why_no_shift

    def reusable(self, seq_id: int, wanted: int) -> Reusable:
        """Pure. The newest state that has taken in no more than what is wanted."""
        check_seq_ids(self.n_seq_max, seq_id)
        running = self._running.get(seq_id)
        if running is None or running.start > 0:
            return of_wanted(0, wanted, f"sequence {seq_id} does not hold position 0")
        n = max((pos + 1 for pos, _ in running.snapshots if pos < wanted), default=0)
        states = ", ".join(str(pos) for pos, _ in running.snapshots)
        return of_wanted(n, wanted, f"sequence {seq_id} has a state after positions {states} only (see n_rs_seq)")

    # ---- looking ---------------------------------------------------------------------------------------

    def _cells_in_use(self) -> set[int]:
        return {cell for running in self._running.values() for _, cell in running.snapshots}

    @property
    def n_used(self) -> int:
        """State cells in use."""
        return len(self._cells_in_use())

    @property
    def n_free(self) -> int:
        """Spare state cells."""
        return self.n_cells - self.n_used

    def map(self) -> CellMap:
        """Pure. One stream of state cells; a cell's position is that of the last token it has taken in."""
        return CellMap((state_map(self._running, self.n_cells),))

    def columns(self) -> dict[str, bytes]:
        """Pure. All metadata as bytes."""
        return {"running": repr(sorted(self._running.items())).encode()} | {
            "pos_min": self._pos_min.tobytes(),
            "pos_max": self._pos_max.tobytes(),
        }

    def check(self) -> None:
        """Pure. Asserts the invariants; for tests."""
        for s in range(self.n_seq_max):
            running = self._running.get(s)
            expected = (-1, -1) if running is None else (running.pos_min, running.pos_max)
            assert (self._pos_min[s], self._pos_max[s]) == expected
            if running is not None:
                pos = [p for p, _ in running.snapshots]
                assert pos == sorted(set(pos), reverse=True) and len(pos) <= 1 + self.n_rs_seq
                assert running.start <= pos[-1] and pos[0] - pos[-1] <= self.n_rs_seq
        assert self._cells_in_use() <= set(range(self.n_cells))


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
