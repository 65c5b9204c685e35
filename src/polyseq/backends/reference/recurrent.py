"""Ops that carry a state along each sequence: `graph/recurrent_ops.py` in NumPy.

Enters: rows set by set, an `RsView`, the layer's state cells. Leaves: rows, and states in the cells that the view
names. Sequences and columns are computed together; only the scan steps through positions, as its recurrence must.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from polyseq.backends.reference.run import Run
from polyseq.graph import recurrent_ops as ops
from polyseq.memory.rs_view import RsView

F32 = NDArray[np.float32]


def conv(op: ops.Conv, run: Run, x: F32, weight: F32, *bias_rs: F32 | RsView) -> F32:
    """Changes state cells; see `ops.Conv`."""
    *bias, rs = bias_rs
    assert isinstance(rs, RsView)
    states = run.states(op.il, "conv")  # [n_cells, d, n_kernel - 1]
    rows = x.reshape(rs.n_seqs, rs.n_seq_tokens, -1).swapaxes(1, 2)
    rows = np.concatenate((_before(states, rs), rows), axis=2)  # [n_seqs, d, n_kernel - 1 + n_seq_tokens]
    out = np.zeros_like(rows[..., : rs.n_seq_tokens])
    for j in range(op.n_kernel):
        out += rows[..., j : j + rs.n_seq_tokens] * weight[:, j, None]
    seq, t = np.nonzero(rs.dst >= 0)
    ends = sliding_window_view(rows, op.n_kernel - 1, axis=2)  # [..., t + 1, :] is the state after row t
    states[rs.dst[seq, t]] = ends[seq, :, t + 1]
    flat = np.ascontiguousarray(out.swapaxes(1, 2)).reshape(x.shape)
    for b in bias:
        assert isinstance(b, np.ndarray)
        flat += b
    return flat


def selective_scan(op: ops.SelectiveScan, run: Run, x: F32, dt: F32, a: F32, b: F32, c: F32, d: F32, rs: RsView) -> F32:
    """Changes state cells; see `ops.SelectiveScan`."""
    states = run.states(op.il, "ssm")  # [n_cells, d, s]
    h = _before(states, rs)
    shape = (rs.n_seqs, rs.n_seq_tokens)
    dt_, dtx, b_, c_ = (rows.reshape(*shape, -1) for rows in (dt, dt * x, b, c))
    out = np.empty((*shape, x.shape[1]), np.float32)
    for t in range(rs.n_seq_tokens):
        h = np.exp(dt_[:, t, :, None] * a) * h + dtx[:, t, :, None] * b_[:, t, None, :]
        out[:, t] = np.matmul(h, c_[:, t, :, None])[..., 0]
        kept = rs.dst[:, t] >= 0
        states[rs.dst[kept, t]] = h[kept]
    flat = out.reshape(x.shape)
    flat += d * x
    return flat


def _before(states: F32, rs: RsView) -> F32:
    """Pure. [n_seqs, ...] the state that each sequence starts from."""
    new = (rs.src < 0).reshape(-1, *[1] * (states.ndim - 1))
    return np.where(new, np.float32(0), states[rs.src])
