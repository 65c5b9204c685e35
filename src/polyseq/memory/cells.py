"""Step 4, the ground: cells of one or more streams, as columns. Metadata only, no tensors.

A cell has a position and a set of sequences; the empty set means free. Streams share the columns, so that 32
sequences in 32 streams are one NumPy call, not 32.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.batch.positions import SeqRanges
from polyseq.batch.seqset import ids_of, n_words
from polyseq.memory.slot import Slot

FREE = -1
_OWN = np.uint64(1)  # in a stream of its own a sequence is bit 0


@dataclass(frozen=True, slots=True)
class CellsMark:
    """Counts at one moment. With the slots filled since, all of which were free, it takes the cells back there.

    Where cells are overwritten it holds every column instead.
    """

    head: NDArray[np.int64]  # [n_stream]
    used: NDArray[np.int64]  # [n_stream]
    end: NDArray[np.int64]  # [n_stream]
    pos_min: NDArray[np.int32]  # [n_seq_max]
    pos_max: NDArray[np.int32]  # [n_seq_max]
    window: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint64], NDArray[np.bool_]] | None
    # pos, shift, seqs and has_shift, where cells that hold something may be overwritten


class Cells:
    """Columns over [n_stream, n_cells]. Free cells hold position -1, no sequences and no shift.

    One stream holds all sequences (bit s = sequence s); with several, stream s holds only sequence s (bit 0).
    With a window (`n_swa`) a cell may also be taken once no query still to come can see it.
    """

    def __init__(self, *, n_stream: int, n_cells: int, n_seq_max: int, n_swa: int = 0) -> None:
        self.n_stream = n_stream
        self.n_cells = n_cells
        self.n_seq_max = n_seq_max
        self.n_swa = n_swa
        words = n_words(n_seq_max) if n_stream == 1 else 1
        self.pos = np.full((n_stream, n_cells), FREE, np.int32)
        self.shift = np.zeros((n_stream, n_cells), np.int32)  # pending: how far K must still be rotated
        self.seqs = np.zeros((n_stream, n_cells, words), np.uint64)
        self.head = np.zeros(n_stream, np.int64)  # where the next search starts; may be n_cells
        self.used = np.zeros(n_stream, np.int64)
        self.end = np.zeros(n_stream, np.int64)  # behind the last used cell
        self.has_shift = np.zeros(n_stream, np.bool_)
        self.pos_min = np.full(n_seq_max, FREE, np.int32)
        self.pos_max = np.full(n_seq_max, FREE, np.int32)

    # ---- looking ---------------------------------------------------------------------------------------

    @property
    def ranges(self) -> SeqRanges:
        """Position ranges per sequence; read-only views that follow the cells."""
        views = self.pos_min.view(), self.pos_max.view()
        for view in views:
            view.flags.writeable = False
        return SeqRanges(*views)

    def held_by(self, seq_id: int) -> tuple[int, NDArray[np.bool_]]:
        """(stream, [n_cells] whether each of its cells belongs to the sequence)."""
        if self.n_stream > 1:
            return seq_id, self.pos[seq_id] != FREE
        word, bit = seq_id >> 6, np.uint64(1 << (seq_id & 63))
        return 0, (self.seqs[0, :, word] & bit) != 0

    def members(self, seq_ids: NDArray[np.int32], n_kv: int) -> NDArray[np.bool_]:
        """[n, n_kv] which of the first cells of the one stream belong to each sequence; their ids ascend."""
        octets = self.seqs[0, :n_kv].view(np.uint8)  # little-endian: byte s // 8, bit s % 8
        first, last = int(seq_ids[0]) >> 3, int(seq_ids[-1]) >> 3
        planes = np.ascontiguousarray(octets.T[first : last + 1])  # a line per octet, so that what follows is in order
        bits = (1 << (seq_ids & 7)).astype(np.uint8)
        held: NDArray[np.bool_] = (planes[(seq_ids >> 3) - first] & bits[:, None]) != 0
        return held

    def usable(self, streams: NDArray[np.intp], cells: NDArray[np.intp], *, shared: bool) -> NDArray[np.bool_]:
        """Pure. [n] which of these cells may be taken: free, or behind the window of their only sequence, with
        `shared` of all their sequences.

        The window is that of the oldest query still to come, at the position after the sequence's last.
        """
        pos = self.pos[streams, cells]
        usable: NDArray[np.bool_] = pos == FREE
        if self.n_swa:
            owner = self.owner(streams, cells)
            usable |= (owner >= 0) & (self.pos_max[owner] + 1 - pos >= self.n_swa)
            if shared and self.n_stream == 1:
                usable |= ~self._seen_by_any(cells)
        return usable

    def _seen_by_any(self, cells: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Pure. [n] which cells of the one stream some sequence's next query can see."""
        held, pos = self.seqs[0, cells], self.pos[0, cells]
        seen = np.zeros(len(cells), np.bool_)
        for s in ids_of(np.bitwise_or.reduce(held, axis=0)):
            seen |= ((held[:, s >> 6] >> np.uint64(s & 63)) & _OWN != 0) & (self.pos_max[s] + 1 - pos < self.n_swa)
        return seen

    def owner(self, streams: NDArray[np.intp], cells: NDArray[np.intp]) -> NDArray[np.intp]:
        """Pure. [n] the only sequence that holds each of these cells, -1 where there is none or more than one."""
        if self.n_stream > 1:
            return np.where(self.pos[streams, cells] == FREE, -1, streams)
        words = self.seqs[0, cells]
        alone = (words & (words - np.uint64(1)) == 0).all(axis=1) & (np.count_nonzero(words, axis=1) == 1)
        word = words.argmax(axis=1)
        bit = np.log2(np.maximum(words[np.arange(len(word)), word], 1)).astype(np.intp)
        return np.where(alone, 64 * word + bit, -1)

    # ---- taking and giving back ------------------------------------------------------------------------

    def put(
        self,
        streams: NDArray[np.intp],
        cells: NDArray[np.intp],
        pos: NDArray[np.int32],
        masks: NDArray[np.uint64] | None,
        pair_seq: NDArray[np.int32],
        pair_pos: NDArray[np.int32],
    ) -> None:
        """Changes the cells: row i takes the usable cell `cells[i]` of `streams[i]`; each stream's head moves behind
        the last cell it gave. `masks` are read in one stream only. `pair_seq` and `pair_pos` list every (sequence,
        position) pair of the rows, those of a sequence in order.
        A sequence of which a cell was overwritten loses what is older too, so that the rest of it has no hole.
        """
        overwritten = self._overwrite(streams, cells) if self.n_swa else {}
        self.pos[streams, cells] = pos
        self.seqs[streams, cells] = _OWN if masks is None or self.n_stream > 1 else masks
        behind = cells + 1
        self.head[streams] = behind  # the last row of a stream stays
        np.add.at(self.used, streams, 1)
        np.maximum.at(self.end, streams, behind)
        self._widen(pair_seq, pair_pos)
        for seq_id, newest in overwritten.items():
            self._purge(seq_id, newest)

    def _widen(self, pair_seq: NDArray[np.int32], pair_pos: NDArray[np.int32]) -> None:
        """Changes the ranges: new positions stand behind those held, in order; so only empty sequences get a least."""
        new = self.pos_min[pair_seq] == FREE
        if new[new.argmax()]:
            first_last = pair_seq[new][::-1], pair_pos[new][::-1]  # the first of a sequence is written last and stays
            self.pos_min[first_last[0]] = first_last[1]
        self.pos_max[pair_seq] = pair_pos

    def _overwrite(self, streams: NDArray[np.intp], cells: NDArray[np.intp]) -> dict[int, int]:
        """Changes those of the cells that hold something to free ones: {sequence: its newest position among them}."""
        held = self.pos[streams, cells] != FREE
        if not held.any():
            return {}
        streams, cells = streams[held], cells[held]
        newest = np.full(self.n_seq_max, FREE, np.int32)
        owner, pos = self.owner(streams, cells), self.pos[streams, cells]
        alone = owner >= 0
        np.maximum.at(newest, owner[alone], pos[alone])
        for cell in cells[~alone]:
            np.maximum.at(newest, ids_of(self.seqs[0, cell]), self.pos[0, cell])
        self.pos[streams, cells] = FREE
        self.shift[streams, cells] = 0
        self.seqs[streams, cells] = 0
        np.subtract.at(self.used, streams, 1)
        return {int(s): int(newest[s]) for s in np.flatnonzero(newest != FREE)}

    def _purge(self, seq_id: int, newest: int) -> None:
        """Changes the cells: the sequence leaves those up to a position, one of which it had to give away."""
        stream, held = self.held_by(seq_id)
        pos = self.pos[stream]
        older = held & (pos <= newest)
        if older.any():
            self.leave(seq_id, older)
            held &= ~older
        left = pos[held]
        self.pos_min[seq_id], self.pos_max[seq_id] = (left.min(), left.max()) if len(left) else (FREE, FREE)

    def leave(self, seq_id: int, which: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Changes the cells: the sequence leaves those of the mask, all its own; what nobody holds becomes free.

        [n_cells] the cells freed. Ranges are refreshed by the caller.
        """
        stream = 0
        emptied = which
        if self.n_stream > 1:
            stream = seq_id
        else:
            self.seqs[0, which, seq_id >> 6] &= ~np.uint64(1 << (seq_id & 63))
            emptied = which & ~self.seqs[0].any(axis=1)
        self.free(stream, emptied)
        return emptied

    def mark(self) -> CellsMark:
        """Pure. What `undo` needs to come back here."""
        columns = (self.pos.copy(), self.shift.copy(), self.seqs.copy(), self.has_shift.copy()) if self.n_swa else None
        return CellsMark(
            self.head.copy(), self.used.copy(), self.end.copy(), self.pos_min.copy(), self.pos_max.copy(), columns
        )

    def undo(self, mark: CellsMark, slots: Iterable[Slot]) -> None:
        """Changes the cells back to the mark. `slots` are those put since, wholly, partly or not yet."""
        if mark.window is not None:
            self.pos[:], self.shift[:], self.seqs[:], self.has_shift[:] = mark.window
        else:
            for slot in slots:
                self.pos[slot.row_streams, slot.cells] = FREE
                self.seqs[slot.row_streams, slot.cells] = 0
        self.head[:] = mark.head
        self.used[:] = mark.used
        self.end[:] = mark.end
        self.pos_min[:] = mark.pos_min
        self.pos_max[:] = mark.pos_max

    def free(self, stream: int, which: NDArray[np.bool_]) -> None:
        """Changes the cells: those of the mask become free. Ranges are refreshed by the caller."""
        self.pos[stream, which] = FREE
        self.shift[stream, which] = 0
        self.seqs[stream, which] = 0
        self.recount(stream)

    def recount(self, stream: int) -> None:
        """Changes the stream's counts to what its cells say."""
        used = np.flatnonzero(self.pos[stream] != FREE)
        self.used[stream] = len(used)
        self.end[stream] = used[-1] + 1 if len(used) else 0

    def refresh_ranges(self, seq_ids: Iterable[int]) -> None:
        """Changes the ranges of these sequences to what the cells say."""
        for seq_id in seq_ids:
            stream, mask = self.held_by(seq_id)
            held = self.pos[stream, mask]
            self.pos_min[seq_id] = held.min() if len(held) else FREE
            self.pos_max[seq_id] = held.max() if len(held) else FREE

    def seq_ids_in(self, stream: int, which: NDArray[np.bool_]) -> list[int]:
        """The sequences that hold any cell of the mask."""
        if self.n_stream > 1:
            return [stream] if which.any() else []
        return [int(s) for s in ids_of(np.bitwise_or.reduce(self.seqs[0, which], axis=0))]

    def clear(self) -> None:
        """Changes the cells: all free, heads at 0, nothing pending."""
        self.pos.fill(FREE)
        self.pos_min.fill(FREE)
        self.pos_max.fill(FREE)
        for column in (self.shift, self.seqs, self.head, self.used, self.end, self.has_shift):
            column.fill(0)

    # ---- for tests -------------------------------------------------------------------------------------

    def columns(self) -> dict[str, bytes]:
        """Every column as bytes: two equal results mean byte-identical metadata."""
        names = ("pos", "shift", "seqs", "head", "used", "end", "has_shift", "pos_min", "pos_max")
        return {name: getattr(self, name).tobytes() for name in names}

    def check(self) -> None:
        """Pure. Asserts the invariants; for tests."""
        held = (self.seqs != 0).any(axis=2)
        assert (held == (self.pos != FREE)).all()
        assert not self.shift[~held].any()
        assert (self.used == held.sum(axis=1)).all()
        assert ((self.head >= 0) & (self.head <= self.n_cells)).all()
        for stream in range(self.n_stream):
            used = np.flatnonzero(held[stream])
            assert self.end[stream] == (used[-1] + 1 if len(used) else 0)
        for seq_id in range(self.n_seq_max):
            stream, mask = self.held_by(seq_id)
            pos = self.pos[stream, mask]
            expected = (pos.min(), pos.max()) if len(pos) else (FREE, FREE)
            assert (self.pos_min[seq_id], self.pos_max[seq_id]) == expected
