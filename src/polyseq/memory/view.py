"""What attention sees of the cache for one ubatch: where each row is written, which cells each row may read.

Enters: an ubatch, its slot and the cells after `apply`. Leaves: index columns that a backend turns into its own
inputs. Pure data; the cache tensors themselves belong to the backend.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class KvView:
    """Rows of one ubatch against the cells of their streams.

    Rows `offsets[i]:offsets[i+1]` belong to stream `streams[i]`; a stream appears once.
    """

    n_kv: int  # cells [0, n_kv) of every stream hold all that any row may see
    streams: NDArray[np.int32]  # [n_streams] i32
    offsets: NDArray[np.int64]  # [n_streams + 1]
    cells: NDArray[np.int32]  # [n_tokens] i32  the cell each row is written to, in its own stream
    visible: NDArray[np.bool_]  # [n_tokens, n_kv] row i may attend to cell j of its own stream
