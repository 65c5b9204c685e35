"""Looks for results that are no numbers, before they are handed out and before what led to them stays in memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import NotFinite
from polyseq.split import Ubatch


def refuse_not_finite(ubatch: Ubatch, out_rows: NDArray[np.int32], results: Mapping[str, NDArray[np.float32]]) -> None:
    """Pure. Raises `NotFinite` naming the first row of logits with NaN or infinity in it."""
    logits = results.get("logits")
    if logits is None or not logits.size:
        return
    bad = ~(np.isfinite(logits.max(axis=1)) & np.isfinite(logits.min(axis=1)))
    if bad.any():
        row = int(out_rows[bad.argmax()])
        raise NotFinite(
            f"logits of batch row {ubatch.batch_idxs[row]} (sequence {ubatch.first_seq[row]}, position "
            f"{ubatch.pos[0, row]}) are not finite"
        )
