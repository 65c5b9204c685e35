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

    Row i belongs to stream `streams[row_stream[i]]`; a stream appears once, its rows need not be neighbours. A row
    sees the cells of its (first) sequence that stand at its position or before, with a window less than `n_swa` before;
    the rows of a span see on to its end.
    """

    n_kv: int  # cells [0, n_kv) of every stream hold all that any row may see
    streams: NDArray[np.int32]  # [n_streams] i32
    row_stream: NDArray[np.intp]  # [n_tokens] each row's index into streams
    cells: NDArray[np.int32]  # [n_tokens] i32  the cell each row is written to, in its own stream
    pos: NDArray[np.int32]  # [n_tokens] i32
    cell_pos: NDArray[np.int32]  # [n_streams, n_kv] i32, -1 = free
    members: NDArray[np.bool_] | None  # [n_seqs, n_kv] whose cells are whose; None: a stream has one sequence
    row_member: NDArray[np.intp] | None  # [n_tokens] each row's line of members
    n_swa: int = 0  # 0: no window
    last_seen: NDArray[np.int32] | None = None  # [n_tokens] i32 the last position a row sees; None: its own

    def visible(self, rows: slice | NDArray[np.intp]) -> NDArray[np.bool_]:
        """Pure. [n, n_kv] which cells of its own stream each of these rows may see."""
        of_row = self.cell_pos if len(self.cell_pos) == 1 else self.cell_pos[self.row_stream[rows]]
        last = self.pos if self.last_seen is None else self.last_seen
        # Free cells hold -1, which as u32 lies after every position.
        seen: NDArray[np.bool_] = of_row.view(np.uint32) <= last[rows, None].view(np.uint32)
        if self.n_swa:
            seen &= of_row > self.pos[rows, None] - self.n_swa
        if self.members is not None and self.row_member is not None:
            seen &= self.members[self.row_member[rows]]
        return seen
