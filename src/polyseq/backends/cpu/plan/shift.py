"""The shift graph: keys turned in place, so that what was written for one position stands as if for another.

Enters: a shift per cell. Leaves: K of one layer, read, turned in float32 as the reference backend turns it, and written
back as it was kept. It runs once after positions change, so NumPy is fast enough.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.cache import CpuCache
from polyseq.backends.cpu.kv.rows import CellRows
from polyseq.backends.reference.rotation import rotated, turns
from polyseq.graph import Inputs, ops

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


class ShiftPlan:
    """A `CacheShift` ready to run. What ends a run early leaves it to be run again with the same inputs: K is read and
    turned once, and only then written, as often as it takes.
    """

    def __init__(self, op: ops.CacheShift, cache: CpuCache, factors: NDArray[np.float32] | None) -> None:
        self._op, self._factors = op, factors
        self._name = cache.part_of(op.il)
        self._part = cache.parts[self._name]
        self._turned: tuple[Inputs, list[tuple[I32, F32]]] | None = None  # places of a stream, and what they get

    def run(self, inputs: Inputs) -> dict[str, NDArray[np.float32]]:
        """Changes K of the layer in every cell with a shift."""
        shift = inputs.shift if self._name == "kv" else inputs.shift_swa
        if shift is None:
            raise ValueError(f"the graph reads the shift of part {self._name!r}, which was not given")
        rows = self._part.keys(self._op.il)
        if self._turned is None or self._turned[0] is not inputs:
            self._turned = inputs, [self._turn(rows, shift, int(s)) for s in np.flatnonzero(shift.any(axis=1))]
        for places, values in self._turned[1]:
            rows.put_values(places, values)
        self._turned = None
        return {}

    def _turn(self, rows: CellRows, shift: I32, stream: int) -> tuple[I32, F32]:
        """Pure. Where the shifted cells of a stream are, and their K turned [n, n_head_kv, n_dim] f32."""
        cells = np.flatnonzero(shift[stream])
        places = self._part.places(stream, cells)
        cells, places = cells[places >= 0], places[places >= 0]
        turn = turns(self._op.params, shift[stream, cells], self._factors)
        return places, rotated(rows.values(places), turn, self._op.params.mode)
