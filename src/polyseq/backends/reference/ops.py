"""The ops in NumPy, one small function each: what an op's docstring says, in float32.

Enters: an op, the run it belongs to, its arguments as arrays. Leaves: the node's value, an array of its own that no
later node changes. Attention, rotation, encoders and what carries a state have files of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.reference import encoder, recurrent
from polyseq.backends.reference.activations import ACTIVATIONS
from polyseq.backends.reference.attention import attention
from polyseq.backends.reference.linear import linear
from polyseq.backends.reference.rotation import rotated, turns
from polyseq.backends.reference.run import Run
from polyseq.graph import encoder_ops, ops, recurrent_ops
from polyseq.memory.view import KvView

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
OpFn = Callable[..., F32 | None]


def get_rows(op: ops.GetRows, run: Run, table: F32, ids: I32) -> F32:
    return np.ascontiguousarray(table[ids])


def select(op: ops.Select, run: Run, mask: NDArray[np.bool_], a: F32, b: F32) -> F32:
    return np.where(mask[:, None], a, b)


def rms_norm(op: ops.RmsNorm, run: Run, x: F32, weight: F32) -> F32:
    mean = np.einsum("ij,ij->i", x, x) / np.float32(x.shape[1])
    out: F32 = x / np.sqrt(mean + np.float32(op.eps))[:, None]
    out *= weight
    return out


def head_norm(op: ops.HeadNorm, run: Run, x: F32, weight: F32) -> F32:
    return rms_norm(ops.RmsNorm(op.eps), run, x.reshape(-1, op.head_dim), weight).reshape(x.shape)


def linear_op(op: ops.Linear, run: Run, x: F32, weight: F32, bias: F32 | None = None) -> F32:
    out = linear(x, weight)
    if bias is not None:
        out += bias
    return out


def rope(op: ops.Rope, run: Run, x: F32, pos: I32, factors: F32 | None = None) -> F32:
    # Every layer turns q and k by the same angles; an id stands for a weight, which outlives the run.
    turn = run.shared((op.params, id(factors)), lambda: turns(op.params, pos[0], factors))
    heads = x.reshape(len(x), x.shape[1] // op.head_dim, op.head_dim)
    return rotated(heads, turn, op.params.mode).reshape(x.shape)


def cache_write(op: ops.CacheWrite, run: Run, k: F32, v: F32, kv: KvView) -> None:
    streams = run.shared(("stream of row", id(kv)), lambda: kv.streams[kv.row_stream])
    run.cache.k[op.il][streams, :, kv.cells] = k.reshape(len(k), op.n_head_kv, k.shape[1] // op.n_head_kv)
    run.cache.v[op.il][streams, :, kv.cells] = v.reshape(len(v), op.n_head_kv, v.shape[1] // op.n_head_kv)


def cache_shift(op: ops.CacheShift, run: Run, shift: I32, factors: F32 | None = None) -> None:
    streams, cells = run.shared(("shifted", id(shift)), lambda: np.nonzero(shift))
    turn = run.shared((op.params, id(factors), id(shift)), lambda: turns(op.params, shift[streams, cells], factors))
    k = run.cache.k[op.il]
    k[streams, :, cells] = rotated(k[streams, :, cells], turn, op.params.mode)


def glu(op: ops.Glu, run: Run, gate: F32, up: F32) -> F32:
    out = ACTIVATIONS[op.act](gate)
    out *= up
    return out


def act(op: ops.Act, run: Run, x: F32) -> F32:
    return ACTIVATIONS[op.f](x)


def add(op: ops.Add, run: Run, a: F32, b: F32) -> F32:
    return a + b


def mul(op: ops.Mul, run: Run, a: F32, b: F32) -> F32:
    return a * b


def scale(op: ops.Scale, run: Run, x: F32) -> F32:
    return x * np.float32(op.factor)


def columns(op: ops.Columns, run: Run, x: F32) -> F32:
    return np.ascontiguousarray(x[:, op.first : op.first + op.count])


def take_rows(op: ops.TakeRows, run: Run, x: F32, rows: I32) -> F32:
    return x[rows]


OPS: Mapping[type[Any], OpFn] = MappingProxyType(
    {
        ops.GetRows: get_rows,
        ops.Select: select,
        ops.RmsNorm: rms_norm,
        ops.HeadNorm: head_norm,
        ops.Linear: linear_op,
        ops.Rope: rope,
        ops.CacheWrite: cache_write,
        ops.Attention: attention,
        ops.Glu: glu,
        ops.Act: act,
        ops.Add: add,
        ops.Mul: mul,
        ops.Scale: scale,
        ops.Columns: columns,
        ops.TakeRows: take_rows,
        ops.CacheShift: cache_shift,
        encoder_ops.PositionRows: encoder.position_rows,
        encoder_ops.SegmentRows: encoder.segment_rows,
        encoder_ops.LayerNorm: encoder.layer_norm,
        encoder_ops.SelfAttention: encoder.self_attention,
        encoder_ops.MeanPool: encoder.mean_pool,
        recurrent_ops.Conv: recurrent.conv,
        recurrent_ops.SelectiveScan: recurrent.selective_scan,
    }
)
