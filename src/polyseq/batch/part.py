"""Some rows of a checked batch, as a checked batch: to try what would fit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyseq.batch.by_sequence import BySequence
from polyseq.batch.checked import CheckedBatch


def keep_rows(batch: CheckedBatch, rows: NDArray[np.intp]) -> CheckedBatch:
    """Pure. A checked batch of these rows ([n] ascending, at least one), positions as they were resolved."""
    counts = np.diff(batch.seq_offsets)[rows]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    ids = batch.seq_ids[np.repeat(batch.seq_offsets[rows], counts) + within]
    shared = offsets if batch.coupled and offsets[-1] > len(rows) else None
    return CheckedBatch(
        n_seq_max=batch.n_seq_max,
        token=None if batch.token is None else batch.token[rows],
        embd=None if batch.embd is None else batch.embd[rows],
        state=None if batch.state is None else batch.state[rows],
        is_embd=None if batch.is_embd is None else batch.is_embd[rows],
        pos=batch.pos[:, rows],
        seq_ids=ids,
        shared_offsets=shared,
        output=batch.output[rows],
        by_seq=BySequence.of(ids, shared),
        span=None if batch.span is None else _kept_spans(batch.span[rows]),
    )


def _kept_spans(span: NDArray[np.int32]) -> NDArray[np.int32] | None:
    """Pure. Spans named by the first row of each that is still there; None where none is."""
    if span.max() < 0:
        return None
    _, first, which = np.unique(span, return_index=True, return_inverse=True)
    return np.where(span < 0, span, first[which.reshape(-1)]).astype(np.int32)
