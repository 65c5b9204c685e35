"""Looks for results that are no numbers, before they are handed out and before what led to them stays in memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import NotFinite
from polyseq.split import Ubatch


def refuse_not_finite(ubatch: Ubatch, out_rows: NDArray[np.int32], results: Mapping[str, NDArray[np.float32]]) -> None:
    """Pure. Raises `NotFinite` naming the result, and the first row or sequence of it with NaN or infinity in it."""
    for name, rows in results.items():
        if not rows.size:
            continue
        bad = ~(np.isfinite(rows.max(axis=1)) & np.isfinite(rows.min(axis=1)))
        if bad.any():
            raise NotFinite(f"{name} of {_named(name, int(bad.argmax()), ubatch, out_rows)} are not finite")


def _named(name: str, i: int, ubatch: Ubatch, out_rows: NDArray[np.int32]) -> str:
    """Whose the i-th row of a result is."""
    if name == "pooled":
        return f"sequence {ubatch.seq_id_unq[i]}"
    row = int(out_rows[i]) if name == "logits" else i
    return f"batch row {ubatch.batch_idxs[row]} (sequence {ubatch.first_seq[row]}, position {ubatch.pos[0, row]})"
