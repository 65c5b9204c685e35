"""What some sequences hold of one part of a memory, as it is saved; and where it would go when it is restored.

Metadata only: which cells to read and which to write. Nothing in here knows the layout of the memory it came from,
apart from `streams` and `cells`, which are taken again where they are free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import NoSlot, SavedStateError
from polyseq.memory.cache_part import PartName

I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SavedPart:
    """`n` cells, each stored once however many sequences share it."""

    name: PartName
    pos: I32  # [n]
    entry: I32  # [n_pairs] which cell,
    seq: I32  # [n_pairs] is held by which sequence
    streams: I32  # [n] where it was
    cells: I32  # [n]
    heads: I32  # [n_stream] where each stream's next search would have started
    starts: I32  # [n_seq_max] running states: the position of each sequence's first token, -1 elsewhere

    @property
    def n(self) -> int:
        """Cells."""
        return len(self.pos)

    def last_of_each(self, n_seq_max: int) -> I32:
        """Pure. [n_seq_max] i32 the last position of each sequence, -1 = absent."""
        last = np.full(n_seq_max, -1, np.int32)
        np.maximum.at(last, self.seq, self.pos[self.entry])
        return last

    def renamed(self, seq_id: int, n_seq_max: int) -> SavedPart:
        """Pure. Of one saved sequence, under another id."""
        starts = np.full(n_seq_max, -1, np.int32)
        starts[seq_id] = self.starts.max(initial=-1)
        return replace(self, seq=np.full_like(self.seq, seq_id), starts=starts)

    def check(self, n_seq_max: int) -> None:
        """Pure. Raises `SavedStateError` for what no memory can have written."""
        n, pairs = self.n, (self.entry, self.seq)
        sound = (
            len(self.streams) == len(self.cells) == n
            and len(self.entry) == len(self.seq)
            and all(len(a) == 0 or a.min() >= 0 for a in (self.pos, *pairs, self.streams, self.cells))
            and (len(self.entry) == 0 or self.entry.max() < n)
            and len(np.unique(self.entry)) == n
            and len(np.unique(np.stack(pairs, axis=1), axis=0)) == len(self.entry)
        )
        if not sound:
            raise SavedStateError(f"part {self.name}: cells, positions and sequences do not go together")
        if len(self.seq) and self.seq.max() >= n_seq_max:
            raise SavedStateError(
                f"sequence {self.seq.max()} was saved, but here ids are below {n_seq_max} (n_seq_max); restore it "
                "under another id"
            )


@dataclass(frozen=True, slots=True)
class Placing:
    """Where saved cells go: one that several streams need goes to each of them."""

    name: PartName
    entry: NDArray[np.intp]  # [m]
    streams: NDArray[np.intp]  # [m]
    cells: NDArray[np.intp]  # [m]
    as_saved: bool  # every cell is where it was


def no_room(part: PartName, *, needed: int, free: int, n_cells: int, stream: int) -> NoSlot:
    """Pure. The refusal of a saved state that does not fit."""
    return NoSlot(
        needed=needed, free=free, largest_run=0, n_cells=n_cells, stream=stream, i_ubatch=0, holders=(), part=part
    )
