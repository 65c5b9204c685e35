"""The encoders' ops as records: norm, attention over whole sequences, means, rows of small tables.

Enters: groups of fuse.py. Leaves: records with the words of rows/words.py and seq_words.py.
"""

from __future__ import annotations

import math

from polyseq.backends.cpu.plan.build import Builder, Late, Word, width
from polyseq.backends.cpu.plan.fuse import Form, Group
from polyseq.backends.cpu.plan.lower_linear import ROWS
from polyseq.backends.cpu.plan.lower_rows import CHUNK, bits, row_norm, vector
from polyseq.backends.cpu.rows.seq_words import M, Q, scratch_bytes
from polyseq.backends.cpu.rows.words import W
from polyseq.backends.cpu.words.aligned import address
from polyseq.backends.cpu.words.records import S
from polyseq.graph import Input, Ref, Weight
from polyseq.graph import encoder_ops as ops


def layer_norm(b: Builder, group: Group) -> frozenset[Form]:
    """Changes the builder: normed rows, records of them, or both."""
    op, out = group.last.op, group.last.out
    assert isinstance(op, ops.LayerNorm) and out is not None
    x, weight, bias = group.last.args
    words: dict[int, Word] = {W.WEIGHT: vector(b, weight), W.BIAS: vector(b, bias), W.FACTOR: bits(op.eps)}
    return row_norm(b, "rows.norm.layer", x, out, words)


def self_attention(b: Builder, group: Group) -> frozenset[Form]:
    """Changes the builder: attention of all rows on those of their sequence."""
    op, out = group.last.op, group.last.out
    assert isinstance(op, ops.SelfAttention) and out is not None
    q, k, v, _ = group.last.args
    words: dict[int, Word] = {
        Q.Q: b.rows(q),
        Q.K: b.rows(k),
        Q.V: b.rows(v),
        Q.OUT: b.rows(out),
        Q.STRIDE: width(out) * 4,
        Q.HEAD: op.head_dim,
        Q.SCALE: bits(op.scale * math.log2(math.e)),
        Q.GEMM: b.kernel("linear.float_gemm.f32"),
        Q.PAIR_GEMM: b.kernel("linear.float_gemm.f32_pair"),
    }
    n_bytes = scratch_bytes(b.room(q), op.head_dim)
    b.record(
        "attention.self_attention.rows", S.N_SEQ_TILES, words, n_fixed=op.n_head, max_chunk=4, scratch_bytes=n_bytes
    )
    return ROWS


def mean_pool(b: Builder, group: Group) -> frozenset[Form]:
    """Changes the builder: a row per sequence."""
    x, out = group.last.args[0], group.last.out
    assert out is not None
    words: dict[int, Word] = {
        M.X: b.rows(x),
        M.X_STRIDE: width(x) * 4,
        M.OUT: b.rows(out),
        M.OUT_STRIDE: width(out) * 4,
        M.N: width(x),
    }
    b.record("rows.pool_rows.mean", out.shape[0], words)
    return ROWS


def position_rows(b: Builder, group: Group) -> frozenset[Form] | None:
    """Changes the builder: the table's row of each position."""
    table, pos = group.last.args
    if not isinstance(pos, Input):
        return None
    return _table_rows(b, group, table, pos, stride=width(table) * 4)


def segment_rows(b: Builder, group: Group) -> frozenset[Form] | None:
    """Changes the builder: the table's first row for every row, where there is but one segment."""
    op = group.last.op
    assert isinstance(op, ops.SegmentRows)
    table, token, _ = group.last.args
    if op.sep is not None or not isinstance(token, Input):
        return None
    return _table_rows(b, group, table, token, stride=0)  # whatever the token


def _table_rows(b: Builder, group: Group, table: Ref, which: Input, *, stride: int) -> frozenset[Form] | None:
    out = group.last.out
    if not isinstance(table, Weight):
        return None
    assert out is not None
    words: dict[int, Word] = {
        W.X: address(b.weights.array(table.name)),
        W.X_STRIDE: stride,
        W.OUT: b.rows(out),
        W.OUT_STRIDE: width(out) * 4,
        W.N: width(out),
        W.ROWS: Late(which),
    }
    b.record("rows.elements.take", out.shape[0], words, max_chunk=CHUNK)
    return ROWS
