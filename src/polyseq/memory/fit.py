"""How much of a batch that was refused would fit: found by trying, so that it is true of any memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polyseq.batch.checked import CheckedBatch
from polyseq.batch.part import keep_rows
from polyseq.split.spans import n_whole


def longest_start(batch: CheckedBatch, fits: Callable[[CheckedBatch], bool], *, n_most: int) -> int:
    """Pure where `fits` is. The largest n <= n_most found such that the first n rows fit and end inside no span, in
    log(n) trials.
    """
    fit, n_most = 0, min(n_most, batch.n_tokens)
    while fit < n_most:
        n = (fit + n_most + 1) // 2
        if fits(keep_rows(batch, np.arange(n))):
            fit = n
        else:
            n_most = n - 1
    return n_whole(batch.span, np.arange(min(fit + 1, batch.n_tokens)), fit)
