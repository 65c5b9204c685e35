"""The encoders' ops in NumPy, as `graph/encoder_ops.py` defines them.

Sequences of equal length are computed together, as one stack of matrices; nothing is padded, and no row meets a row
of another sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.reference.run import Run
from polyseq.graph import encoder_ops as ops
from polyseq.memory.seq_view import SeqView

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Spans:
    """Where each sequence's rows are: `starts` and `lengths` [n_seqs], in row order."""

    starts: NDArray[np.intp]
    lengths: NDArray[np.intp]
    seq: NDArray[np.int32]  # [n_seqs] the view's index of each

    def of_length(self, length: int) -> slice | NDArray[np.intp]:
        """Pure. The rows of all sequences of this length: a slice where they are neighbours."""
        starts = self.starts[self.lengths == length]
        if (np.diff(starts) == length).all():
            return slice(int(starts[0]), int(starts[-1]) + length)
        rows: NDArray[np.intp] = (starts[:, None] + np.arange(length)).reshape(-1)
        return rows


def spans_of(seqs: SeqView) -> Spans:
    """Pure."""
    starts = np.flatnonzero(np.diff(seqs.row_seq, prepend=-1))
    return Spans(starts, np.diff(starts, append=len(seqs.row_seq)), seqs.row_seq[starts])


def position_rows(op: ops.PositionRows, run: Run, table: F32, pos: I32) -> F32:
    rows: F32 = table[pos[0]]
    return rows


def segment_rows(op: ops.SegmentRows, run: Run, table: F32, token: I32, seqs: SeqView) -> F32:
    if op.sep is None:
        return np.repeat(table[:1], len(token), axis=0)
    spans = spans_of(seqs)
    ends = token == op.sep
    before = np.cumsum(ends) - ends
    segment = before - np.repeat(before[spans.starts], spans.lengths)
    rows: F32 = table[np.minimum(segment, len(table) - 1)]
    return rows


def layer_norm(op: ops.LayerNorm, run: Run, x: F32, weight: F32, bias: F32) -> F32:
    out: F32 = x - x.mean(axis=1, keepdims=True)
    variance = np.einsum("ij,ij->i", out, out) / np.float32(x.shape[1])
    out /= np.sqrt(variance + np.float32(op.eps))[:, None]
    out *= weight
    out += bias
    return out


def self_attention(op: ops.SelfAttention, run: Run, q: F32, k: F32, v: F32, seqs: SeqView) -> F32:
    spans = run.shared("spans", lambda: spans_of(seqs))
    out = np.empty_like(q)
    for length in np.unique(spans.lengths).tolist():
        rows = spans.of_length(length)
        heads = (-1, length, op.n_head, op.head_dim)
        q_h, k_h, v_h = (a[rows].reshape(heads).swapaxes(1, 2) for a in (q, k, v))  # [n_seqs, n_head, ...]
        scores: F32 = np.matmul(q_h * np.float32(op.scale), k_h.swapaxes(2, 3))
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        sums = scores.sum(axis=-1, keepdims=True)
        out[rows] = (np.matmul(scores, v_h) / sums).swapaxes(1, 2).reshape(-1, q.shape[1])
    return out


def mean_pool(op: ops.MeanPool, run: Run, x: F32, seqs: SeqView) -> F32:
    spans = run.shared("spans", lambda: spans_of(seqs))
    out = np.empty((seqs.n_seqs, x.shape[1]), np.float32)
    out[spans.seq] = np.add.reduceat(x, spans.starts, axis=0)
    out[spans.seq] /= spans.lengths[:, None].astype(np.float32)
    return out
