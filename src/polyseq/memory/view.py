"""What attention sees of the cache for one ubatch: where each row is written, which cells each row may read.

Enters: an ubatch, its slot and the cells after `apply`. Leaves: columns over rows and cells; a backend asks for the
mask of the rows it works on, or turns the columns into something sparser. The cache tensors belong to the backend.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class KvView:
    """Rows of one ubatch against the cells of their streams.

    Rows `offsets[i]:offsets[i+1]` belong to stream `streams[i]`; a stream appears once. A row sees the cells of its
    (first) sequence that stand at its position or before.
    """

    n_kv: int  # cells [0, n_kv) of every stream hold all that any row may see
    streams: NDArray[np.int32]  # [n_streams] i32
    offsets: NDArray[np.intp]  # [n_streams + 1]
    cells: NDArray[np.int32]  # [n_tokens] i32  the cell each row is written to, in its own stream
    pos: NDArray[np.int32]  # [n_tokens] i32
    cell_pos: NDArray[np.int32]  # [n_streams, n_kv] i32, -1 = free
    members: NDArray[np.bool_] | None  # [n_seqs, n_kv] whose cells are whose; None: a stream has one sequence
    row_member: NDArray[np.intp] | None  # [n_tokens] each row's line of members

    @property
    def row_streams(self) -> NDArray[np.intp]:
        """[n_tokens] each row's index into `streams`."""
        return np.repeat(np.arange(len(self.streams)), self.offsets[1:] - self.offsets[:-1])

    def visible(self, rows: slice | NDArray[np.intp]) -> NDArray[np.bool_]:
        """Pure. [n, n_kv] which cells of its own stream each of these rows may see."""
        # Free cells hold -1, which as u32 lies after every position.
        cell_pos = self.cell_pos.view(np.uint32)
        of_row = cell_pos if len(cell_pos) == 1 else cell_pos[self.row_streams[rows]]
        seen: NDArray[np.bool_] = of_row <= self.pos[rows, None].view(np.uint32)
        if self.members is not None and self.row_member is not None:
            seen &= self.members[self.row_member[rows]]
        return seen
