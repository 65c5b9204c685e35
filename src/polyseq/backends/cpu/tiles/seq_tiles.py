"""What encoders' kernels read about an ubatch: where each sequence's rows are, and the tiles that attention works on.

Enters: a `SeqView`. Leaves: i32 arrays, whose addresses a step holds. A tile is up to 240 rows of one sequence, so that
threads can share a long one; which tiles a sequence has depends on its length alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.words.aligned import address
from polyseq.backends.cpu.words.records import S
from polyseq.backends.reference.encoder import spans_of
from polyseq.memory.seq_view import SeqView

MOST_ROWS = 240
I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SeqTiles:
    """spans [n_seqs, 2] i32: first row and rows of each sequence; tiles [n_tiles, 4] i32: those of a tile's sequence,
    then of the tile."""

    spans: I32
    tiles: I32

    def step_words(self) -> Mapping[int, int]:
        """Pure. The words of a step that name these arrays, which must outlive the run."""
        return {S.SPANS: address(self.spans), S.SEQ_TILES: address(self.tiles), S.N_SEQ_TILES: len(self.tiles)}


def seq_tiles(seqs: SeqView) -> SeqTiles:
    """Pure. Of one ubatch; tiles are in row order."""
    found = spans_of(seqs)
    spans = np.zeros((seqs.n_seqs, 2), np.int32)
    spans[found.seq, 0], spans[found.seq, 1] = found.starts, found.lengths
    n_tiles = -(-found.lengths // MOST_ROWS)
    of = np.repeat(np.arange(len(found.starts)), n_tiles)
    tiles = np.empty((len(of), 4), np.int32)
    tiles[:, 0], tiles[:, 1] = found.starts[of], found.lengths[of]
    before = (np.arange(len(of)) - (np.cumsum(n_tiles) - n_tiles)[of]) * MOST_ROWS
    tiles[:, 2] = tiles[:, 0] + before
    tiles[:, 3] = np.minimum(MOST_ROWS, tiles[:, 1] - before)
    return SeqTiles(spans, tiles)
