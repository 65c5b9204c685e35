"""Step 4: find state cells: where each sequence of an ubatch starts from, and which spare cells take its new states.

There is always room; see `n_state_cells`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import CoupledSequences
from polyseq.memory.slot import Slot
from polyseq.memory.states import States
from polyseq.split import Ubatch


@dataclass(frozen=True, slots=True)
class RsSlot:
    """The state cells of one ubatch, by sequence set."""

    src: NDArray[np.int32]  # [n_seqs] i32, -1: zeros
    dst: NDArray[np.int32]  # [n_seqs, n_seq_tokens] i32, -1: not kept
    ends: NDArray[np.bool_]  # [n_seqs] whether these are the set's last rows of the call
    kv: Slot | None = None


def n_state_cells(*, n_seq_max: int, n_rs_seq: int) -> int:
    """Pure. Enough for any call: what all sequences hold before it and after it, and one state under way for each."""
    return n_seq_max * (2 * (1 + n_rs_seq) + 1)


def find_state_slot(
    states: States, ubatch: Ubatch, *, last_row: NDArray[np.intp], taken: set[int], n_rs_seq: int
) -> RsSlot:
    """Pure. `last_row`: [n_seq_max] the last batch row of each sequence; `taken`: cells that may not be written.

    Raises `CoupledSequences` where sequences share a row but not a state.
    """
    spare = iter(cell for cell in range(states.n_cells) if cell not in taken)
    src = np.full(ubatch.n_seqs, -1, np.int32)
    dst = np.full((ubatch.n_seqs, ubatch.n_seq_tokens), -1, np.int32)
    ends = np.zeros(ubatch.n_seqs, np.bool_)
    for i in range(ubatch.n_seqs):
        seq_ids = ubatch.row_seq_ids(i * ubatch.n_seq_tokens)
        last = (i + 1) * ubatch.n_seq_tokens - 1
        if ubatch.row_seq_ids(last) != seq_ids:
            raise CoupledSequences(
                f"rows shared by sequences {', '.join(map(str, seq_ids))} and rows of some of them come together "
                "here, but their running states differ; give each sequence rows of its own"
            )
        src[i] = _shared_state(states, seq_ids)
        ends[i] = (last_row[seq_ids] == ubatch.batch_idxs[last]).any()
        n_kept = min(1 + n_rs_seq, ubatch.n_seq_tokens) if ends[i] else 1
        dst[i, -n_kept:] = [next(spare) for _ in range(n_kept)]
    return RsSlot(src, dst, ends)


def _shared_state(states: States, seq_ids: Sequence[int]) -> int:
    """The cell of the newest state, which all these sequences must have in common; -1: they are empty."""
    cells = {states.running[s].cell if s in states.running else -1 for s in seq_ids}
    if len(cells) > 1:
        raise CoupledSequences(
            f"sequences {', '.join(map(str, seq_ids))} share a row, but their running states differ; copy one to "
            "the others first, or give each a row of its own"
        )
    return cells.pop()
