"""A slot: the cells that one ubatch takes, stream by stream. Found without a trace, filled by `apply`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Slot:
    """Rows `offsets[i]:offsets[i+1]` of the ubatch go to stream `streams[i]`."""

    streams: NDArray[np.intp]  # [n_streams]
    offsets: NDArray[np.intp]  # [n_streams + 1]
    cells: NDArray[np.intp]  # [n_tokens] the cell of each row, in its own stream

    @property
    def row_streams(self) -> NDArray[np.intp]:
        """[n_tokens] the stream of each row."""
        return np.repeat(self.streams, np.diff(self.offsets))
