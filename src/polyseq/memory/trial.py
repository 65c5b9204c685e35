"""What if: a refused batch tried again on copies of a memory's metadata, which hold no tensors.

Enters: the call that was refused, and a setting or a sequence to be without. Leaves: whether it would fit then. True of
any kind of memory, since copies are made the way saved sequences are restored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyseq.batch.batch import Batch
from polyseq.batch.checked import CheckedBatch
from polyseq.batch.flat import FlatBatch
from polyseq.errors import NoSlot, PolyseqError, SplitError
from polyseq.memory.memory import Memory
from polyseq.memory.registry import make_memory
from polyseq.memory.settings import MemorySettings


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that was refused: what it asked of which memory. An error carries it, for `explain.advise` to read.

    Nothing is copied: it speaks of batch and memory as they are when it is asked.
    """

    batch: Batch | FlatBatch
    memory: Memory
    settings: MemorySettings  # that the memory was made from

    def attach(self, error: PolyseqError) -> None:
        """Changes the error: it knows the call, unless it knew one already."""
        if error.refused is None:
            error.refused = self


@dataclass(frozen=True, slots=True)
class Trial:
    """Copies of one memory, each in a setting of its own."""

    memory: Memory
    settings: MemorySettings

    def copy(self, **changed: Any) -> Memory | None:
        """Pure. A memory that holds the same, made from the same settings but for those given; None where they or
        what is held do not go into it.
        """
        try:
            if "unified" in changed:  # what was asked for is a cut of the other
                changed["strategy"] = None
            settings = replace(self.settings, **changed)
            made = make_memory(settings)
            parts = self.memory.saved(list(range(settings.n_seq_max)))
            placings = made.place_saved(parts)
        except (PolyseqError, ValueError):
            return None
        if isinstance(placings, NoSlot):
            return None
        made.restore(parts, placings)
        return made

    def fits(self, batch: CheckedBatch, **changed: Any) -> bool:
        """Pure. Whether the batch would find room with these settings; without any, as it is."""
        memory = self.copy(**changed) if changed else self.memory
        return memory is not None and has_room(memory, batch, self.settings.n_ubatch)

    def least_n_cells(self, batch: CheckedBatch) -> int | None:
        """Pure. The fewest cells of a stream that would hold the batch too, None where no number of them helps."""
        few = self.settings.n_cells
        enough = few + batch.n_tokens
        if not self.fits(batch, n_cells=enough):
            return None
        while enough - few > 1:
            middle = (few + enough) // 2
            few, enough = (few, middle) if self.fits(batch, n_cells=middle) else (middle, enough)
        return enough


def has_room(memory: Memory, batch: CheckedBatch, n_ubatch: int) -> bool:
    """Pure. Whether the memory has room for all of the batch, by what `Context.decode` would try."""
    try:
        found = memory.init_batch(batch, n_ubatch)
        return not isinstance(found, NoSlot) or memory.retry_batch(batch, n_ubatch) is not None
    except SplitError:
        return False


def held_alone(memory: Memory, part: str) -> dict[int, np.ndarray[Any, np.dtype[np.int32]]]:
    """Pure. By sequence, ascending: the positions of the cells that only it holds, of the part of that name."""
    (saved,) = (p for p in memory.saved(list(range(memory.n_seq_max))) if p.name == part)
    alone = (np.bincount(saved.entry, minlength=saved.n) == 1)[saved.entry]
    pos = saved.pos[saved.entry]
    return {int(s): np.sort(pos[alone & (saved.seq == s)]) for s in np.unique(saved.seq)}
