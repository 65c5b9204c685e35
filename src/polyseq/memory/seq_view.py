"""Which rows of one ubatch belong together, where every row sees all rows of its sequence (encoders)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SeqView:
    """Rows of one sequence are neighbours, in position order."""

    n_seqs: int
    row_seq: NDArray[np.int32]  # [n_tokens] i32 dense index of each row's sequence
