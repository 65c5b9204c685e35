"""A sixth kind of memory, for tests: a ring of cells per sequence, for models whose every layer has a window.

Position p lives in cell p mod n_cells of its sequence's stream, so that finding room is arithmetic and all metadata is
where each sequence began and which positions it still has. Written against what every memory answers, as a kind of
somebody else's would be.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from polyseq.batch import CheckedBatch, SeqRanges
from polyseq.errors import Holder, NoSlot, SequenceError, SplitError
from polyseq.memory import (
    CachePart,
    CellMap,
    CellRun,
    Example,
    KvView,
    MemoryPlan,
    MemorySettings,
    Pending,
    Reusable,
    StreamMap,
    Views,
)
from polyseq.memory.compaction import Move
from polyseq.memory.kind import SOME_WINDOW, Kind
from polyseq.memory.saved import Placing, SavedPart
from polyseq.memory.slot import HeldCells
from polyseq.split import Equal, Packed, Strategy, Ubatch, split_all

I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Held:
    """[n_seq_max] where each sequence began, the first position it still has, its last; -1: empty."""

    began: I32
    first: I32
    last: I32

    def copy(self) -> Held:
        return Held(self.began.copy(), self.first.copy(), self.last.copy())

    def take(self, other: Held) -> None:
        for mine, theirs in ((self.began, other.began), (self.first, other.first), (self.last, other.last)):
            mine[:] = theirs


@dataclass(frozen=True, slots=True)
class RingSlot:
    streams: NDArray[np.intp]  # [n_streams]
    row_stream: NDArray[np.intp]  # [n_tokens]
    cells: NDArray[np.intp]  # [n_tokens]
    kv: None = None  # no cell keeps every token


class Ring:
    why_no_shift = "a position's cell in a ring follows from the position"
    copy_replaces = True

    def __init__(self, s: MemorySettings) -> None:
        (self.part,) = ring_parts(s)
        self.n_cells, self.n_seq_max, self.n_pos = s.n_cells, s.n_seq_max, s.n_pos
        self.n_swa = max(layer.n_swa for layer in s.layers if layer is not None and layer.part == "kv_swa")  # type: ignore[union-attr]
        self.strategy: Strategy = Packed() if s.packed else Equal(sequential=True)
        self.parts = (self.part,)
        self.lock = threading.RLock()
        self.held = Held(*(np.full(s.n_seq_max, -1, np.int32) for _ in range(3)))
        self._copies: list[tuple[str, int, int]] = []

    @property
    def ranges(self) -> SeqRanges:
        return SeqRanges(self.held.first, self.held.last)

    # ---- ask, then do ----------------------------------------------------------------------------------

    def init_batch(self, batch: CheckedBatch, n_ubatch: int) -> MemoryPlan[RingSlot] | NoSlot:
        ubatches = split_all(batch, self.strategy, n_ubatch)
        mark, slots = self.mark(), []
        try:
            for i, ubatch in enumerate(ubatches):
                full = self._no_slot(batch, ubatch, i)
                if full is not None:
                    return full
                slots.append(self._slot(ubatch))
                self.apply(ubatch, slots[-1])
        finally:
            self.undo(mark, slots)
        return MemoryPlan(tuple(ubatches), tuple(slots))

    def retry_batch(self, batch: CheckedBatch, n_ubatch: int) -> None:
        return None

    def _slot(self, ubatch: Ubatch) -> RingSlot:
        row_stream = ubatch.seq_idx[ubatch.first_seq].astype(np.intp)
        return RingSlot(ubatch.seq_id_unq.astype(np.intp), row_stream, (ubatch.pos[0] % self.n_cells).astype(np.intp))

    def _no_slot(self, batch: CheckedBatch, ubatch: Ubatch, i: int) -> NoSlot | None:
        """Its first row must still see its window when its last row has been written."""
        for s, pos in _by_sequence(ubatch):
            if (np.diff(pos) != 1).any():
                raise SplitError(f"sequence {s}: a ring holds one token at a position")
            began = pos[0] if self.held.last[s] < 0 else self.held.began[s]
            needed = int(pos[-1] - max(began, pos[0] + 1 - self.n_swa) + 1)
            if needed > self.n_cells:
                n_held = self._n_held(s)
                held = (Holder(s, n_held, int(self.held.first[s]), int(self.held.last[s])),) if n_held else ()
                facts = {"free": self.n_cells, "largest_run": self.n_cells, "n_cells": self.n_cells}
                return NoSlot(needed=needed, stream=s, i_ubatch=i, holders=held, part=self.part.name, **facts)
        return None

    def apply(self, ubatch: Ubatch, slot: RingSlot) -> None:
        held = self.held
        for s, pos in _by_sequence(ubatch):
            if held.last[s] < 0:
                held.began[s] = held.first[s] = pos[0]
            held.last[s] = pos[-1]
            held.first[s] = max(held.first[s], pos[-1] + 1 - self.n_cells)

    def mark(self) -> Held:
        return self.held.copy()

    def undo(self, mark: Held, slots: Iterable[RingSlot]) -> None:
        self.held.take(mark)

    def in_use(self, mark: Held, slot: RingSlot) -> tuple[HeldCells, ...]:
        pos = np.stack([self._cell_pos(mark, s) for s in slot.streams.tolist()])
        held = pos[slot.row_stream, slot.cells] >= 0
        streams = slot.streams[slot.row_stream]
        return (HeldCells(self.part.name, streams[held], slot.cells[held]),) if held.any() else ()

    def _cell_pos(self, held: Held, stream: int) -> I32:
        """[n_cells] the position in each cell, -1 = free."""
        last = held.last[stream]
        pos = last - (last - np.arange(self.n_cells, dtype=np.int32)) % self.n_cells
        return np.where((last >= 0) & (pos >= held.first[stream]), pos, -1).astype(np.int32)

    def views(self, ubatch: Ubatch, slot: RingSlot) -> Views:
        cell_pos = np.stack([self._cell_pos(self.held, s) for s in slot.streams.tolist()])
        streams, cells = slot.streams.astype(np.int32), slot.cells.astype(np.int32)
        columns = streams, slot.row_stream, cells, ubatch.pos[0], cell_pos
        return Views(kv_swa=KvView(self.n_cells, *columns, members=None, row_member=None, n_swa=self.n_swa))

    def pending(self) -> Pending:
        return Pending(tuple(self._copies))

    def copied(self) -> None:
        del self._copies[0]

    def settle(self) -> None:
        self._copies.clear()

    def compaction(self) -> tuple[Move, ...]:
        return ()

    def moved(self, move: Move) -> None:
        raise AssertionError("there was none")

    # ---- saved and restored ------------------------------------------------------------------------------

    def saved(self, seq_ids: list[int]) -> tuple[SavedPart, ...]:
        self._check(*seq_ids)
        held = [(s, np.arange(self.held.first[s], self.held.last[s] + 1)) for s in seq_ids if self.held.last[s] >= 0]
        pos = np.concatenate([np.zeros(0, np.int32), *(p for _, p in held)]).astype(np.int32)
        seq = np.repeat([s for s, _ in held], [len(p) for _, p in held]).astype(np.int32)
        starts = np.full(self.n_seq_max, -1, np.int32)
        starts[seq] = self.held.began[seq]
        entry, heads = np.arange(len(pos), dtype=np.int32), np.zeros(self.n_seq_max, np.int32)
        return (SavedPart(self.part.name, pos, entry, seq, seq, pos % self.n_cells, heads, starts),)

    def place_saved(self, parts: tuple[SavedPart, ...]) -> tuple[Placing, ...] | NoSlot:
        (part,) = parts
        last = np.full(self.n_seq_max, -1, np.int32)
        np.maximum.at(last, part.seq, part.pos[part.entry])
        pos = part.pos[part.entry]
        kept = pos > last[part.seq] - self.n_cells
        entry, seq = part.entry[kept].astype(np.intp), part.seq[kept].astype(np.intp)
        return (Placing(self.part.name, entry, seq, (pos[kept] % self.n_cells).astype(np.intp), as_saved=False),)

    def restore(self, parts: tuple[SavedPart, ...], placings: tuple[Placing, ...]) -> None:
        (part,), (placing,) = parts, placings
        for s in np.unique(placing.streams).tolist():
            pos = part.pos[placing.entry[placing.streams == s]]
            self.held.began[s], self.held.first[s], self.held.last[s] = part.starts[s], pos.min(), pos.max()

    # ---- sequence operations ---------------------------------------------------------------------------

    def rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> bool:
        if seq_id == -1:
            return all(self.rm(s, p0, p1) for s in range(self.n_seq_max))
        with self.lock:
            self._check(seq_id)
            first, last = int(self.held.first[seq_id]), int(self.held.last[seq_id])
            p0 = max(p0, 0)
            if last < p0 or (0 <= p1 <= first) or 0 <= p1 <= p0:
                return True
            if p0 <= self.held.began[seq_id] and (p1 < 0 or p1 > last):
                self._empty(seq_id)
            elif 0 <= p1 <= last or self.reusable(seq_id, p0).n < p0:
                raise SequenceError(f"a ring cannot take positions [{p0}, {p1}) out of sequence {seq_id}")
            else:
                self.held.last[seq_id] = p0 - 1
            return True

    def cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        with self.lock:
            self._check(src, dst)
            if src == dst or self.held.last[src] < 0:
                return
            if p0 > self.held.began[src] or 0 <= p1 <= self.held.last[src]:
                raise SequenceError(f"a ring is copied whole, not only [{p0}, {p1})")
            for column in (self.held.began, self.held.first, self.held.last):
                column[dst] = column[src]
            self._copies.append((self.part.name, src, dst))

    def keep(self, seq_id: int) -> None:
        self._check(seq_id)

    def add(self, seq_id: int, p0: int, p1: int, delta: int) -> None:
        self._check(seq_id)
        if delta:
            raise SequenceError(f"add: {self.why_no_shift}")

    def div(self, seq_id: int, p0: int, p1: int, d: int) -> None:
        self._check(seq_id)
        if d != 1:
            raise SequenceError(f"div: {self.why_no_shift}")

    def clear(self) -> None:
        with self.lock:
            for s in range(self.n_seq_max):
                self._empty(s)
            self._copies.clear()

    def pos_min(self, seq_id: int) -> int:
        self._check(seq_id)
        return int(self.held.first[seq_id])

    def pos_max(self, seq_id: int) -> int:
        self._check(seq_id)
        return int(self.held.last[seq_id])

    def _empty(self, seq_id: int) -> None:
        self.held.began[seq_id] = self.held.first[seq_id] = self.held.last[seq_id] = -1

    def _check(self, *seq_ids: int) -> None:
        for s in seq_ids:
            if not 0 <= s < self.n_seq_max:
                raise SequenceError(f"sequence {s} is outside [0, {self.n_seq_max}) (n_seq_max)")

    # ---- looking ---------------------------------------------------------------------------------------

    def why_torn(self, batch: CheckedBatch) -> str:
        return ""

    def why_no_drop(self, seq_id: int, p0: int, p1: int) -> str:
        return self.why_no_shift

    def reusable(self, seq_id: int, wanted: int) -> Reusable:
        self._check(seq_id)
        held, n = self.held, min(wanted, int(self.held.last[seq_id]) + 1)
        if n and held.began[seq_id] == 0 and held.first[seq_id] <= max(0, n + 1 - self.n_swa):
            return Reusable(n, "" if n == wanted else f"sequence {seq_id} does not hold position {n}")
        return Reusable(0, "the window before it was overwritten" if n else "nothing is held")

    def _n_held(self, seq_id: int) -> int:
        return int(self.held.last[seq_id] - self.held.first[seq_id] + 1) if self.held.last[seq_id] >= 0 else 0

    @property
    def n_used(self) -> int:
        return sum(map(self._n_held, range(self.n_seq_max)))

    @property
    def n_free(self) -> int:
        return self.n_seq_max * self.n_cells - self.n_used

    def map(self) -> CellMap:
        return CellMap(tuple(map(self._stream_map, range(self.n_seq_max))))

    def _stream_map(self, s: int) -> StreamMap:
        pos = self._cell_pos(self.held, s)
        starts = np.flatnonzero(np.diff(pos, prepend=-2) != (pos >= 0)).tolist()
        ends = [*starts[1:], self.n_cells]
        runs = [CellRun(a, b - a, int(pos[a]), (s,) if pos[a] >= 0 else ()) for a, b in zip(starts, ends, strict=True)]
        free = max((run.count for run in runs if run.pos < 0), default=0)
        head = (int(self.held.last[s]) + 1) % self.n_cells
        return StreamMap(s, self.n_cells, self._n_held(s), head, has_shift=False, largest_run=free, runs=tuple(runs))

    def columns(self) -> dict[str, bytes]:
        return {name: getattr(self.held, name).tobytes() for name in ("began", "first", "last")}

    def check(self) -> None:
        empty = self.held.last < 0
        assert ((self.held.first < 0) == empty).all() and ((self.held.began < 0) == empty).all()
        assert (self.held.began <= self.held.first).all() and (self.held.last - self.held.first < self.n_cells).all()


def _by_sequence(ubatch: Ubatch) -> Iterator[tuple[int, I32]]:
    """Each sequence's positions, in order."""
    for s in ubatch.seq_id_unq.tolist():
        yield s, ubatch.pos[0][ubatch.first_seq == s]


def ring_parts(s: MemorySettings) -> tuple[CachePart, ...]:
    return (CachePart("kv_swa", s.n_seq_max, s.n_cells, s.layers_in("kv_swa")),)


KIND = Kind(
    "ring",
    (frozenset({"kv_swa"}),),
    ring_parts,
    Ring,
    (Example("ring", (replace(SOME_WINDOW, n_swa=4),), (Equal(sequential=True), Packed()), unified=False),),
)
