"""Step 4 for models that keep K and V of every token: one unified stream, or one stream per sequence.

Enters: a `CheckedBatch`. Leaves: a `MemoryPlan` with all ubatches cut and placed, or `NoSlot`; then `apply` writes one
ubatch at a time. Metadata only: the cache tensors are the backend's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from polyseq.batch.checked import CheckedBatch
from polyseq.batch.positions import SeqRanges
from polyseq.batch.seqset import MAX_SEQ
from polyseq.errors import BadSeqCount, ContextError, Holder, NoSlot, SequenceError
from polyseq.lock import Lock
from polyseq.memory import sequence_ops as ops
from polyseq.memory.cache_layer import CacheLayer
from polyseq.memory.cache_part import CachePart
from polyseq.memory.cell_map import CellMap, cell_map, largest_run
from polyseq.memory.cells import Cells, CellsMark
from polyseq.memory.compaction import Move, moved, moves
from polyseq.memory.cuts import attention_cut
from polyseq.memory.pending import Pending, StreamCopy
from polyseq.memory.placement import find_slot
from polyseq.memory.plan import MemoryPlan
from polyseq.memory.restore_cells import place_cells, restore_cells, saved_cells
from polyseq.memory.reusable import Reusable, of_wanted
from polyseq.memory.saved import Placing, SavedPart
from polyseq.memory.slot import HeldCells, Slot
from polyseq.memory.surely import surely
from polyseq.memory.view import KvView
from polyseq.memory.views import Views
from polyseq.split import Strategy, Ubatch, split_all


class KvCache:
    """A KV cache of `n_cells` cells per stream (llama.cpp's `llama_kv_cache`).

    Unified: one stream for all sequences, the simple cut. Otherwise a stream per sequence, no row shared by several
    sequences, and the equal sequential cut, or the packed one where rows need not be rectangular (`packed`).
    Where sequences are pooled (`embeddings`), the seq cut for both.
    With a window (`n_swa`) cells that no query still to come can see may be overwritten.
    `layers` is what a cell holds, by il; it may be left out where no tensors follow.
    """

    def __init__(
        self,
        *,
        n_cells: int,
        n_seq_max: int,
        unified: bool,
        n_pos: int = 1,
        packed: bool = False,
        embeddings: bool = False,
        n_swa: int = 0,
        layers: Mapping[int, CacheLayer] | None = None,
    ) -> None:
        if not 1 <= n_seq_max <= MAX_SEQ:
            raise BadSeqCount(f"n_seq_max is {n_seq_max}, it must be 1 to {MAX_SEQ}", value=n_seq_max, limit=MAX_SEQ)
        if n_cells < 1:
            raise ContextError(f"a cache of {n_cells} cells holds nothing; it must have at least 1")
        self.n_cells = n_cells
        self.n_seq_max = n_seq_max
        self.n_pos = n_pos
        self.n_stream = 1 if unified else n_seq_max
        self.strategy: Strategy = attention_cut(n_stream=self.n_stream, packed=packed, embeddings=embeddings)
        self.part = CachePart("kv_swa" if n_swa else "kv", self.n_stream, n_cells, layers or {})
        self.cells = Cells(n_stream=self.n_stream, n_cells=n_cells, n_seq_max=n_seq_max, n_swa=n_swa)
        self._mixed = unified and n_seq_max > 1  # a stream may hold several sequences
        self._copies: list[StreamCopy] = []
        self.lock = Lock()  # a running decode holds it; sequence operations wait

    @property
    def parts(self) -> tuple[CachePart, ...]:
        """The cache tensors it needs."""
        return (self.part,)

    @property
    def ranges(self) -> SeqRanges:
        """Position ranges per sequence; a view that follows the cells."""
        return self.cells.ranges

    # ---- ask, then do ----------------------------------------------------------------------------------

    def init_batch(self, batch: CheckedBatch, n_ubatch: int) -> MemoryPlan[Slot] | NoSlot:
        """Pure (what it tries it takes back). Cuts all of the batch and finds room for all of it, or says why not.

        Raises `CoupledSequences` where rows are shared and streams are not.
        """
        ubatches = split_all(batch, self.strategy, n_ubatch)
        slots = self.place(batch, ubatches)
        return slots if isinstance(slots, NoSlot) else MemoryPlan(tuple(ubatches), slots)

    def place(
        self, batch: CheckedBatch, ubatches: Sequence[Ubatch], *, shared: bool = False
    ) -> tuple[Slot, ...] | NoSlot:
        """Pure (what it tries it takes back). A slot for each ubatch of a batch, or why there is none.

        `shared`: cells of several sequences may be overwritten too, once none of them will see them again.
        """
        if len(ubatches) == 1:  # a decode step: there is nothing to take back
            only = find_slot(self.cells, ubatches[0], shared=shared)
            return (only,) if isinstance(only, Slot) else self._no_slot(batch, 0, only)
        slots: list[Slot] = []
        mark = self.mark()
        try:
            for i, ubatch in enumerate(ubatches):
                found = find_slot(self.cells, ubatch, shared=shared)
                if not isinstance(found, Slot):
                    break
                slots.append(found)
                if i + 1 < len(ubatches):
                    self.apply(ubatch, found)
        finally:
            surely(lambda: self.undo(mark, slots))
        if isinstance(found, Slot):
            return tuple(slots)
        return self._no_slot(batch, len(slots), found)

    def apply(self, ubatch: Ubatch, slot: Slot) -> None:
        """Changes the cells: the ubatch takes its slot."""
        pos = ubatch.pos[0]
        pair_pos = np.repeat(pos, np.diff(ubatch.seq_offsets)) if ubatch.coupled else pos
        masks = ubatch.masks if self._mixed else None
        self.cells.put(slot.row_streams, slot.cells, pos, masks, ubatch.seq_ids, pair_pos)

    def retry_batch(self, batch: CheckedBatch, n_ubatch: int) -> None:
        """Pure. There is nothing to give up: every token will be seen again, and cells need not be neighbours."""

    def mark(self) -> CellsMark:
        """Pure. What `undo` needs to take back everything applied from now on."""
        return self.cells.mark()

    def undo(self, mark: CellsMark, slots: Iterable[Slot]) -> None:
        """Changes the cells back to the mark; `slots` are those that may have been applied since, even half."""
        self.cells.undo(mark, slots)

    def views(self, ubatch: Ubatch, slot: Slot) -> Views:
        """Pure. What the rows of an applied ubatch may see."""
        return Views(kv=self.view(ubatch, slot))

    def view(self, ubatch: Ubatch, slot: Slot) -> KvView:
        """Pure. What the rows of an applied ubatch may see: cells of their first sequence, not after themselves."""
        cells = self.cells
        ends = cells.end[slot.streams]
        n_kv = int(ends[ends.argmax()])
        return KvView(
            n_kv=n_kv,
            streams=slot.streams.astype(np.int32),
            row_stream=slot.row_stream,
            cells=slot.cells.astype(np.int32),
            pos=ubatch.pos[0],
            cell_pos=cells.pos[slot.streams, :n_kv],
            members=cells.members(ubatch.seq_id_unq, n_kv) if self._mixed else None,
            row_member=ubatch.seq_idx[ubatch.first_seq].astype(np.intp) if self._mixed else None,
            n_swa=cells.n_swa,
            last_seen=ubatch.last_seen,
        )

    def in_use(self, mark: CellsMark, slot: Slot) -> tuple[HeldCells, ...]:
        """Pure. Cells of a slot not yet applied that held something at the mark, which computing overwrites.

        They may have been let go since: a sequence that gives a cell away leaves what is older.
        """
        if mark.window is None:
            return ()
        held = mark.window[0][slot.row_streams, slot.cells] >= 0
        return (HeldCells(self.part.name, slot.row_streams[held], slot.cells[held]),) if held.any() else ()

    def pending(self) -> Pending:
        """Pure. What must be done to the cache tensors before the next decode."""
        shifts = {self.part.name: self.cells.shift.copy()} if self.cells.has_shift.any() else {}
        return Pending(tuple(self._copies), shifts)

    def copied(self) -> None:
        """Changes what is pending: the first copy has been done."""
        del self._copies[0]

    def settle(self) -> None:
        """Changes the cells: what was pending has been done, or is somebody else's to do."""
        self._copies.clear()
        self.cells.shift.fill(0)
        self.cells.has_shift.fill(False)

    def compaction(self) -> tuple[Move, ...]:
        """Pure. Which cells would fill the gaps between those in use."""
        return moves(self.cells, self.part.name)

    def moved(self, move: Move) -> None:
        """Changes the cells: the contents of a move have been copied."""
        moved(self.cells, move)

    # ---- saved and restored ------------------------------------------------------------------------------

    def saved(self, seq_ids: list[int]) -> tuple[SavedPart, ...]:
        """Pure. What these sequences hold."""
        self._check_seq(*seq_ids)
        return (saved_cells(self.cells, self.part.name, seq_ids),)

    def place_saved(self, parts: tuple[SavedPart, ...]) -> tuple[Placing, ...] | NoSlot:
        """Pure. Where saved sequences would go, which must be empty here."""
        (part,) = parts
        found = place_cells(self.cells, part)
        return found if isinstance(found, NoSlot) else (found,)

    def restore(self, parts: tuple[SavedPart, ...], placings: tuple[Placing, ...]) -> None:
        """Changes the cells: saved sequences are held again."""
        (part,), (placing,) = parts, placings
        restore_cells(self.cells, part, placing)

    # ---- sequence operations ---------------------------------------------------------------------------

    def rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> bool:
        """Changes the cells: removes positions `[p0, p1)` of a sequence, of all sequences with -1. Always True."""
        with self.lock:
            if seq_id == -1:
                for stream in range(self.n_stream):
                    ops.remove_any(self.cells, stream, p0, p1)
            else:
                self._check_seq(seq_id)
                ops.remove(self.cells, seq_id, p0, p1)
            return True

    def cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Changes the cells: `dst` gets positions `[p0, p1)` of `src`.

        In one stream the cells are shared and what `dst` had stays. Between streams the whole sequence replaces
        `dst`, and the tensors follow before the next decode; a range that leaves something out is refused.
        """
        with self.lock:
            self._check_seq(src, dst)
            if src == dst:
                return
            if self.n_stream == 1:
                ops.share(self.cells, src, dst, p0, p1)
                return
            held = self.cells.pos[src][self.cells.pos[src] >= 0]
            if not ops.in_range(held, p0, p1).all():
                raise SequenceError(
                    f"sequence {src} holds positions {held.min()}..{held.max()}; copying only [{p0}, {p1}) to sequence "
                    f"{dst} needs a unified cache, since here every sequence has a stream of its own"
                )
            ops.replace_stream(self.cells, src, dst)
            self._copies.append((self.part.name, src, dst))

    @property
    def copy_replaces(self) -> bool:
        """Between streams."""
        return self.n_stream > 1

    def keep(self, seq_id: int) -> None:
        """Changes the cells: removes every other sequence from this one's stream."""
        with self.lock:
            self._check_seq(seq_id)
            ops.keep(self.cells, seq_id)

    def add(self, seq_id: int, p0: int, p1: int, delta: int) -> None:
        """Changes the cells: shifts positions `[p0, p1)` of a sequence; K is rotated before the next decode."""
        with self.lock:
            self._check_seq(seq_id)
            self._check_can_shift("add")
            limits = np.iinfo(np.int32)
            if max(self.pos_max(seq_id), 0) + delta > limits.max:
                raise SequenceError(f"sequence {seq_id}: a shift by {delta} goes beyond the largest position")
            if delta != 0 and max(p0, 0) != p1:
                ops.shift(self.cells, seq_id, p0, p1, max(delta, limits.min))

    def div(self, seq_id: int, p0: int, p1: int, d: int) -> None:
        """Changes the cells: divides positions `[p0, p1)` of a sequence by d; K is rotated before the next decode."""
        with self.lock:
            self._check_seq(seq_id)
            self._check_can_shift("div")
            if d < 1:
                raise SequenceError(f"positions can be divided by 1 or more, not by {d}")
            if d != 1:
                ops.divide(self.cells, seq_id, p0, p1, min(d, np.iinfo(np.int32).max))

    def clear(self) -> None:
        """Changes the cells: all free, heads at 0, nothing pending."""
        with self.lock:
            self.cells.clear()
            self._copies.clear()

    def pos_min(self, seq_id: int) -> int:
        """The smallest position a sequence holds, -1 if none."""
        self._check_seq(seq_id)
        return int(self.cells.pos_min[seq_id])

    def pos_max(self, seq_id: int) -> int:
        """The largest position a sequence holds, -1 if none."""
        self._check_seq(seq_id)
        return int(self.cells.pos_max[seq_id])

    # ---- looking ---------------------------------------------------------------------------------------

    def map(self) -> CellMap:
        """Pure. The cells as runs; `print` it, or take its `to_json`."""
        return cell_map(self.cells)

    @property
    def why_no_shift(self) -> str:
        """Why positions cannot be moved; empty: they can."""
        return "" if self.n_pos == 1 else f"positions of {self.n_pos} sections (M-RoPE) cannot be moved"

    def why_torn(self, batch: CheckedBatch) -> str:
        """Pure. Every cell that is left can be seen."""
        return ""

    def why_no_drop(self, seq_id: int, p0: int, p1: int) -> str:
        """Pure. Why positions `[p0, p1)` cannot be taken out and what follows moved up; empty: they can."""
        self._check_seq(seq_id)
        stream, held = self.cells.held_by(seq_id)
        moves = np.flatnonzero(held & (self.cells.pos[stream] >= p1))
        others = self.cells.owner(np.full(len(moves), stream), moves) < 0
        if not self.why_no_shift and others.any():
            return f"sequence {seq_id} shares cells from position {p1} on with others, which would move too"
        return self.why_no_shift

    def reusable(self, seq_id: int, wanted: int) -> Reusable:
        """Pure. All that is held without a hole from position 0 on."""
        self._check_seq(seq_id)
        stream, held = self.cells.held_by(seq_id)
        there = np.zeros(wanted + 1, np.bool_)
        pos = self.cells.pos[stream, held]
        there[pos[pos < wanted]] = True
        n = int(there.argmin())
        return of_wanted(n, wanted, f"sequence {seq_id} does not hold position {n}")

    @property
    def n_used(self) -> int:
        """Cells in use, over all streams."""
        return int(self.cells.used.sum())

    @property
    def n_free(self) -> int:
        """Free cells, over all streams."""
        return self.n_stream * self.n_cells - self.n_used

    def columns(self) -> dict[str, bytes]:
        """Pure. All metadata as bytes: two equal results mean that nothing changed."""
        return self.cells.columns()

    def check(self) -> None:
        """Pure. Asserts the invariants; for tests."""
        self.cells.check()

    # ---- refusals --------------------------------------------------------------------------------------

    def _no_slot(self, batch: CheckedBatch, i_ubatch: int, stream: int) -> NoSlot:
        needed = batch.n_tokens if self.n_stream == 1 else int(np.count_nonzero(batch.first_seq == stream))
        return NoSlot(
            needed=needed,
            free=self.n_cells - int(self.cells.used[stream]),
            largest_run=largest_run(self.cells, stream),
            n_cells=self.n_cells,
            stream=stream,
            i_ubatch=i_ubatch,
            holders=self._holders(stream),
            part=self.part.name,
        )

    def _holders(self, stream: int) -> tuple[Holder, ...]:
        cells = self.cells
        seq_ids = range(self.n_seq_max) if self.n_stream == 1 else (stream,)
        return tuple(
            Holder(s, int(np.count_nonzero(cells.held_by(s)[1])), int(cells.pos_min[s]), int(cells.pos_max[s]))
            for s in seq_ids
            if cells.pos_max[s] >= 0
        )

    def _check_seq(self, *seq_ids: int) -> None:
        ops.check_seq_ids(self.n_seq_max, *seq_ids)

    def _check_can_shift(self, operation: str) -> None:
        if self.why_no_shift:
            raise SequenceError(f"{operation}: {self.why_no_shift}")
