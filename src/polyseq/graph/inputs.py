"""What one run of a plan is given: the columns of one ubatch, under the names a graph reads them by.

Enters: an ubatch and what attention may see. Leaves: arrays for the plan. Step 5. Never changed by a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from polyseq.memory.rs_view import RsView
from polyseq.memory.seq_view import SeqView
from polyseq.memory.view import KvView


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Columns of one ubatch; None where the graph does not read them."""

    token: NDArray[np.int32] | None = None  # [n_tokens] i32
    embd: NDArray[np.float32] | None = None  # [n_tokens, n_embd] f32
    is_embd: NDArray[np.bool_] | None = None  # [n_tokens] bool, mixed content only
    pos: NDArray[np.int32] | None = None  # [n_pos, n_tokens] i32
    out_rows: NDArray[np.int32] | None = None  # [n_outputs] i32, ubatch rows whose results are wanted
    kv: KvView | None = None  # cells of the layers that keep every token
    kv_swa: KvView | None = None  # cells of the layers that keep a window
    rs: RsView | None = None  # state cells
    seqs: SeqView | None = None  # where nothing is kept: who belongs to whom
    shift: NDArray[np.int32] | None = None  # [n_stream, n_cells] i32, shift graphs of layers behind `kv` only
    shift_swa: NDArray[np.int32] | None = None  # the same behind `kv_swa`
    rows: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)  # [n, d] f32 under names of their own

    def get(self, name: str) -> object:
        """Pure. The input of that name. Raises ValueError naming it if it was not given."""
        value = self.rows[name] if name in self.rows else getattr(self, name, None)
        if value is None:
            raise ValueError(f"the graph reads the input '{name}', which was not given")
        return value
