"""Rows of cells put aside before a call overwrites them, for cache tensors in which a cell's place never changes.

Enters: cells about to be overwritten. Leaves, after `put_back`: their first contents again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.backend import CacheTensors
from polyseq.memory.cache_part import PartName

Rows = dict[str, NDArray[Any]]


class KeptRows:
    """Copies, made with the tensors' own `read`: of each cell the first one only."""

    def __init__(self, cache: CacheTensors) -> None:
        self._cache = cache
        self._rows: list[tuple[PartName, int, NDArray[np.intp], Rows]] = []
        self._seen: dict[tuple[PartName, int], NDArray[np.intp]] = {}

    def keep(self, part: PartName, streams: NDArray[np.intp], cells: NDArray[np.intp]) -> None:
        """Changes what is kept: more of it. See `Kept.keep`."""
        for stream in np.unique(streams):
            self._keep(part, int(stream), cells[streams == stream])

    def _keep(self, part: PartName, stream: int, cells: NDArray[np.intp]) -> None:
        seen = self._seen.get((part, stream))
        if seen is not None:
            cells = np.setdiff1d(cells, seen, assume_unique=True)
        if len(cells):
            self._rows.append((part, stream, cells, self._cache.read(part, stream, cells)))
            self._seen[part, stream] = cells if seen is None else np.concatenate((seen, cells))

    def put_back(self) -> None:
        """Changes the tensors: these cells hold what they held."""
        for part, stream, cells, rows in self._rows:
            self._cache.write(part, stream, cells, rows)
