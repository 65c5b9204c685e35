"""The shift graph: keys turned in place, so that what was written for one position stands as if for another.

Enters: a shift per cell. Leaves: K of one layer, read, turned in float32 as the reference backend turns it, and written
back as it was kept. It runs once after positions change, so NumPy is fast enough.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.cache import CpuCache
from polyseq.backends.reference.rotation import rotated, turns
from polyseq.graph import Inputs, ops


class ShiftPlan:
    """A `CacheShift` ready to run."""

    def __init__(self, op: ops.CacheShift, cache: CpuCache, factors: NDArray[np.float32] | None) -> None:
        self._op, self._factors = op, factors
        self._name = cache.part_of(op.il)
        self._part = cache.parts[self._name]

    def run(self, inputs: Inputs) -> dict[str, NDArray[np.float32]]:
        """Changes K of the layer in every cell with a shift."""
        shift = inputs.shift if self._name == "kv" else inputs.shift_swa
        if shift is None:
            raise ValueError(f"the graph reads the shift of part {self._name!r}, which was not given")
        rows = self._part.keys(self._op.il)
        for stream in np.flatnonzero(shift.any(axis=1)):
            cells = np.flatnonzero(shift[stream])
            places = self._part.places(int(stream), cells)
            cells, places = cells[places >= 0], places[places >= 0]
            turn = turns(self._op.params, shift[stream, cells], self._factors)
            rows.put_values(places, rotated(rows.values(places), turn, self._op.params.mode))
        return {}
