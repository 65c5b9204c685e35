"""Query rows as dot products want them.

Enters: a head of a row, f32. Leaves: the same times `scale` in the form of pair_formats.py's weights, filled up with
zeros to a multiple of 32: f32 (Fma), bf16 (Bf16Dot), or int16 with one scale behind (Int8).
"""

from __future__ import annotations

from polyseq.backends.cpu.ir.emit import F32, Emit, F32x16, I16x16, I32x16, Value
from polyseq.backends.cpu.kv.layout import SCALE_DIMS, KvType

_LINE = 64
_LEAST = 1e-20
_MOST = 32767.0


def load_query(e: Emit, kind: KvType, pairs: bool, source: Value, n: Value, scale: Value, q: Value) -> None:
    """Changes the row at q: n f32 from `source`, times `scale`. `pairs`: as bf16 or int16, else as f32."""
    n_groups = e.b.udiv(e.add(n, SCALE_DIMS - 1), e.i64(SCALE_DIMS))
    n_vectors = e.mul(n_groups, 2)
    by = e.splat(scale)

    # First f32: whole vectors, then what is left, one by one, into a vector of zeros.
    def vector(i: Value, _: list[Value]) -> list[Value]:
        e.store(e.b.fmul(e.load(source, F32x16, e.mul(i, _LINE)), by), q, e.mul(i, _LINE))
        return []

    n_whole = e.b.lshr(n, e.i64(4))
    e.loop(n_whole, [], vector)
    start = e.mul(n_whole, _LINE)
    e.each(e.b.sub(n_vectors, n_whole), lambda i: e.store(e.const(F32x16, 0.0), q, e.add(start, e.mul(i, _LINE))))

    def single(i: Value, _: list[Value]) -> list[Value]:
        offset = e.add(start, e.mul(i, 4))
        e.store(e.b.fmul(e.load(source, F32, offset), scale), q, offset)
        return []

    e.loop(e.b.and_(n, e.i64(15)), [], single)
    if kind == "int8":
        _to_int16(e, q, n_vectors)
    elif pairs:
        narrow = e.f32_to_bf16
        e.loop(n_vectors, [], lambda i, _: _narrowed(e, q, i, narrow(e.load(q, F32x16, e.mul(i, _LINE)))))


def _narrowed(e: Emit, q: Value, i: Value, half: Value) -> list[Value]:
    """Vector i in 16 bits, in place: it ends before the next one that is read."""
    e.store(half, q, e.mul(i, _LINE // 2))
    return []


def _to_int16(e: Emit, q: Value, n_vectors: Value) -> None:
    """In place; the scale goes behind the integers. A row with NaN or infinity gets the scale NaN."""

    def vector(i: Value, carried: list[Value]) -> list[Value]:
        x = e.load(q, F32x16, e.mul(i, _LINE))
        return [e.maximum(carried[0], e.abs(x)), e.fma(x, e.const(F32x16, 0.0), carried[1])]

    zero = e.const(F32x16, 0.0)
    largest, bad = e.loop(n_vectors, [zero, zero], vector)
    top = e.maximum(e.max(largest), e.const(F32, _LEAST))
    inverse = e.splat(e.b.fdiv(e.const(F32, _MOST), top))

    def narrow(i: Value, _: list[Value]) -> list[Value]:
        x = e.rint(e.b.fmul(e.load(q, F32x16, e.mul(i, _LINE)), inverse))
        clipped = e.minimum(e.maximum(x, e.const(F32x16, -_MOST)), e.const(F32x16, _MOST))
        return _narrowed(e, q, i, e.b.trunc(e.b.fptosi(clipped, I32x16), I16x16))

    e.loop(n_vectors, [], narrow)
    scale = e.b.fadd(e.b.fmul(top, e.const(F32, 1 / _MOST)), e.sum(bad))
    e.store(scale, q, e.mul(n_vectors, _LINE // 2))
