"""A slot: the cells that one ubatch takes, stream by stream. Found without a trace, filled by `apply`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.memory.cache_part import PartName


@dataclass(frozen=True, slots=True)
class Slot:
    """Row i of the ubatch goes to cell `cells[i]` of stream `streams[row_stream[i]]`."""

    streams: NDArray[np.intp]  # [n_streams]
    row_stream: NDArray[np.intp]  # [n_tokens] each row's index into `streams`
    cells: NDArray[np.intp]  # [n_tokens] the cell of each row, in its own stream

    @property
    def row_streams(self) -> NDArray[np.intp]:
        """[n_tokens] the stream of each row."""
        return self.streams[self.row_stream]

    @property
    def kv(self) -> Slot:
        """The cells among those that keep every token; other kinds of slot may have none."""
        return self


@dataclass(frozen=True, slots=True)
class HeldCells:
    """Cells of a part that hold something and are about to be overwritten."""

    part: PartName
    streams: NDArray[np.intp]  # [n] whose cells they are
    cells: NDArray[np.intp]  # [n]
