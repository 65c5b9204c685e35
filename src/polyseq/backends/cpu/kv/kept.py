"""What cells of this backend hold, put aside before a call overwrites it.

Enters: cells about to be overwritten. Leaves, after `put_back`: their first contents again. What a marked block table
holds stays in its places; with a stream per sequence the words in which the cells lie are copied, all streams and
layers at once.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.kv.part import KvPart
from polyseq.backends.cpu.words.tile_words import BLOCK
from polyseq.backends.kept_rows import KeptRows
from polyseq.memory.cache_part import PartName

_AT_ONCE = 64  # cells: their indexes take a few MB


class KeptCells:
    """The way back for `parts`; `others` keeps what they do not hold."""

    def __init__(self, parts: Mapping[PartName, KvPart], others: KeptRows) -> None:
        self._others = others
        self._words = {name: KeptWords(part) for name, part in parts.items() if part.table is None}
        self._marks = {
            name: (part.table, part.table.mark())
            for name, part in parts.items()
            if part.table is not None and part.table.keeps
        }

    def keep(self, part: PartName, streams: NDArray[np.intp], cells: NDArray[np.intp]) -> None:
        """Changes what is kept. See `Kept.keep`."""
        if part in self._words:
            self._words[part].keep(streams, cells)
        elif part not in self._marks:
            self._others.keep(part, streams, cells)

    def put_back(self) -> None:
        """Changes tables and tensors back."""
        for table, mark in self._marks.values():
            table.undo(mark)
        for words in self._words.values():
            words.put_back()
        self._others.put_back()


class KeptWords:
    """Cells of a part in which a cell's place follows from its number.

    A word may hold bits of the cell beside it. What was kept first is put back last, so those are right too.
    """

    def __init__(self, part: KvPart) -> None:
        self._part = part
        self._kept: list[tuple[NDArray[np.intp], NDArray[np.uint32]]] = []  # places, words

    def keep(self, streams: NDArray[np.intp], cells: NDArray[np.intp]) -> None:
        """Changes what is kept: more of it."""
        places = streams * (self._part.stream_blocks * BLOCK) + cells
        if self._kept:
            places = places[~np.isin(places, np.concatenate([seen for seen, _ in self._kept]))]
        for at in range(0, len(places), _AT_ONCE):
            some = places[at : at + _AT_ONCE]
            self._kept.append((some, self._pool().take(self._index(some))))

    def put_back(self) -> None:
        """Changes the cells: they hold what they held."""
        pool = self._pool()
        for places, words in reversed(self._kept):
            pool[self._index(places)] = words

    def _pool(self) -> NDArray[np.uint32]:
        return self._part.pool.reshape(-1).view(np.uint32)

    def _index(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        """Pure. [n, words of a cell]."""
        return self._part.cell_words.of(places)
