"""Takes a call back, wholly or from its last ubatch on: metadata, and cells whose contents were overwritten.

Enters: each ubatch before it is applied. Leaves, after `undo`: memory and cache tensors as before. Nothing is copied
for memories that only take free cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from polyseq.backends import CacheTensors, Kept
from polyseq.collector import OutputCollector
from polyseq.errors import PartlyDecoded
from polyseq.memory import Memory
from polyseq.memory.surely import surely
from polyseq.split import Ubatch

OnError = Literal["undo", "keep_finished"]


@dataclass(frozen=True, slots=True)
class _Back:
    """Where `undo` goes: one value, so that no interrupt finds half of the next."""

    n_finished: int  # ubatches that stay
    mark: Any  # of the memory
    kept: Kept | None  # None: nothing has been overwritten since the mark


class Rollback:
    """What one call changes. `per_ubatch`: only the ubatch under way is taken back, those before it stay."""

    def __init__(self, memory: Memory, cache: CacheTensors, slots: Sequence[Any], *, per_ubatch: bool) -> None:
        self._memory = memory
        self._cache = cache
        self._slots = slots
        self._per_ubatch = per_ubatch
        self._back = _Back(0, memory.mark(), cache.keeping())

    @property
    def n_finished(self) -> int:
        """How many ubatches would stay."""
        return self._back.n_finished

    def apply(self, ubatch: Ubatch, slot: Any) -> None:
        """Changes the memory: the ubatch takes its slot, after what it overwrites has been put aside."""
        self.keep(slot)
        self._memory.apply(ubatch, slot)

    def keep(self, slot: Any) -> None:
        """Changes what is put aside: what computing into this slot overwrites."""
        back = self._back
        assert back.kept is not None
        for held in self._memory.in_use(back.mark, slot):
            back.kept.keep(held.part, held.streams, held.cells)

    def finished(self) -> None:
        """Changes what would be taken back: the ubatch is computed. What ends this early leaves one or the other."""
        if self._per_ubatch:
            n, mark = self._back.n_finished + 1, self._memory.mark()
            self._back = _Back(n, mark, None)  # before what was kept for the ubatch loses its meaning
            self._back = _Back(n, mark, self._cache.keeping())

    def undo(self) -> None:
        """Changes memory and tensors back; may be called after an end at any point, and again.

        An interrupt is raised once that is done.
        """
        surely(self._undo)

    def _undo(self) -> None:
        back = self._back
        self._memory.undo(back.mark, self._slots[back.n_finished :])
        if back.kept is not None:
            back.kept.put_back()


def partly_decoded(
    ubatches: Sequence[Ubatch], n_finished: int, error: Exception, collector: OutputCollector
) -> PartlyDecoded:
    """Pure. Says which positions of a call stay, with their outputs, and which were taken back."""
    kept, taken_back = _ranges(ubatches[:n_finished]), _ranges(ubatches[n_finished:])
    at = f"ubatch {n_finished} of {len(ubatches)} ended early" if taken_back else "the call ended after its last ubatch"
    why = f"{at} ({type(error).__name__}: {error})"
    return PartlyDecoded(
        f"{why}; kept: {_words(kept)}; taken back: {_words(taken_back)}",
        kept=kept,
        taken_back=taken_back,
        n_ubatches=n_finished,
        outputs=collector.finish_early(ubatches, n_finished, why),
    )


def _ranges(ubatches: Sequence[Ubatch]) -> dict[int, tuple[int, int]]:
    """{sequence: (first, last) position}."""
    if not ubatches:
        return {}
    seq = np.concatenate([u.seq_ids for u in ubatches])
    pos = np.concatenate([np.repeat(u.pos[0], np.diff(u.seq_offsets)) for u in ubatches])
    return {int(s): (int(pos[seq == s].min()), int(pos[seq == s].max())) for s in np.unique(seq)}


def _words(ranges: dict[int, tuple[int, int]]) -> str:
    return ", ".join(f"sequence {s} p{first}..{last}" for s, (first, last) in ranges.items()) or "nothing"
