"""Rotary positions of one run's rows as numbers: what rope's kernels read.

Enters: rope's parameters and positions. Leaves: [n, n_rot] f32, per row the cosines of all pairs, then their sines.
Angles are computed as the reference backend does, in float64, once per position and kept."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.words.aligned import zeros
from polyseq.backends.reference.rotation import turns
from polyseq.graph.ops import RopeParams

_CHUNK = 512  # positions computed at once
_MOST_KEPT = 1 << 17


class Turns:
    """A table by position that grows as positions are asked for."""

    def __init__(self, params: RopeParams, factors: NDArray[np.float32] | None) -> None:
        self._params, self._factors = params, factors
        self._table: NDArray[np.float32] = zeros((_MOST_KEPT, params.n_rot), np.float32)  # memory as it is filled
        self._n = 0

    def rows(self, pos: NDArray[np.int32]) -> NDArray[np.float32]:
        """Changes the table where positions are new. [n, n_rot] f32 for these positions."""
        most = int(pos.max(initial=-1))
        if most >= _MOST_KEPT or pos.min(initial=0) < 0:
            return self._computed(pos)
        start = self._n  # contexts in other threads may move it meanwhile, and write the same numbers
        if most >= start:
            stop = min(-(-(most + 1) // _CHUNK) * _CHUNK, _MOST_KEPT)
            self._table[start:stop] = self._computed(np.arange(start, stop, dtype=np.int32))
            self._n = max(self._n, stop)
        return self._table[pos]

    def _computed(self, pos: NDArray[np.int32]) -> NDArray[np.float32]:
        turn = turns(self._params, pos, self._factors)
        return np.concatenate((turn.real, turn.imag), axis=1).astype(np.float32)
