"""What recurrent ops see of the state cells for one ubatch: where each sequence starts, and which states are kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RsView:
    """A rectangular ubatch, rows set by set: row `i * n_seq_tokens + t` is token t of sequence set i.

    `dst` never names a cell that was in use before the call, so a call that is undone has overwritten nothing.
    """

    n_seqs: int
    n_seq_tokens: int
    src: NDArray[np.int32]  # [n_seqs] i32 the state cell to start from, -1: zeros
    dst: NDArray[np.int32]  # [n_seqs, n_seq_tokens] i32 the cell that takes the state after that row, -1: not kept
