"""Which rows of a run have their cells in the order of their positions, as all rows of the solo run have: a backend
whose bits depend on nothing else owes them the same bits.

Enters: a memory, and ubatch after ubatch as they are computed. Leaves: a flag per row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyseq.memory import CachePart, Memory
from polyseq.memory.cache_layer import KvLayer
from polyseq.split import Ubatch


class CellOrder:
    """Counts what each stream was given: cells are taken in turn, and when all were, those of a window once more."""

    def __init__(self, memory: Memory) -> None:
        parts = [part for part in memory.parts if _keeps_tokens(part)]
        self._n_cells = min((part.n_cells for part in parts), default=np.iinfo(np.int64).max)
        self._one_stream = all(part.n_stream == 1 for part in parts)
        self._n_taken = np.zeros(memory.n_seq_max, np.int64)

    def clear(self) -> None:
        """Changes the counts: the memory is empty again."""
        self._n_taken.fill(0)

    def take(self, ubatch: Ubatch) -> NDArray[np.bool_]:
        """Changes the counts by the next ubatch of rows of one sequence each: [n_tokens] which are in order."""
        stream = np.zeros(ubatch.n_tokens, np.intp) if self._one_stream else ubatch.first_seq
        self._n_taken += np.bincount(stream, minlength=len(self._n_taken))
        in_order: NDArray[np.bool_] = self._n_taken[stream] <= self._n_cells
        return in_order


def _keeps_tokens(part: CachePart) -> bool:
    return any(isinstance(layer, KvLayer) for layer in part.layers.values())
