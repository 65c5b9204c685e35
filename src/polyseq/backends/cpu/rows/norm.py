"""Norms: norm.rms and norm.layer of whole rows, norm.head (root mean square) of every head of a row.

Enters: rows f32 and a weight, by the words `W` of rows/words.py. Leaves: rows f32, for whole rows also or instead the
records that a linear op reads, without a trip through memory. Squares are summed in 16 lanes, then in halves, always in
this order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.emit import F32, Emit, F32x16, Type, Value
from polyseq.backends.cpu.rows.activation import GROUP, N_ROWS, RECORD_BYTES
from polyseq.backends.cpu.rows.quantise import quantise_group
from polyseq.backends.cpu.rows.units import Unit, over_columns, splat_to, sum_columns, unit_code
from polyseq.backends.cpu.rows.words import W


def _inverse(e: Emit, x: Value, n: Value, eps: Value) -> Value:
    """1 / sqrt(mean(x^2) + eps) of n f32."""

    def squares(offset: Value, kind: Type, sums: Value) -> Value:
        here = e.load(x, kind, offset)
        return e.fma(here, here, sums)

    mean = e.b.fdiv(sum_columns(e, n, squares), e.b.sitofp(n, F32))
    return e.b.fdiv(e.const(F32, 1.0), e.sqrt(e.b.fadd(mean, eps)))


def _normed(e: Emit, x: Value, weight: Value, inverse: Value, offset: Value, kind: Type) -> Value:
    scaled = e.b.fmul(e.load(x, kind, offset), splat_to(e, inverse, kind))
    return e.b.fmul(scaled, e.load(weight, kind, offset))


def _rms(e: Emit, unit: Unit, row: Value) -> None:
    x, n, weight = unit.row(W.X, W.X_STRIDE, row), unit.word(W.N), unit.word(W.WEIGHT)
    inverse = _inverse(e, x, n, unit.bits(W.FACTOR))
    _put(e, unit, row, lambda offset, kind: _normed(e, x, weight, inverse, offset, kind))


def _layer(e: Emit, unit: Unit, row: Value) -> None:
    x, n, weight, bias = unit.row(W.X, W.X_STRIDE, row), unit.word(W.N), unit.word(W.WEIGHT), unit.word(W.BIAS)
    count = e.b.sitofp(n, F32)
    mean = e.b.fdiv(sum_columns(e, n, lambda offset, kind, sums: e.b.fadd(e.load(x, kind, offset), sums)), count)

    def centred(offset: Value, kind: Type) -> Value:
        return e.b.fsub(e.load(x, kind, offset), splat_to(e, mean, kind))

    def squares(offset: Value, kind: Type, sums: Value) -> Value:
        here = centred(offset, kind)
        return e.fma(here, here, sums)

    variance = e.b.fdiv(sum_columns(e, n, squares), count)
    inverse = e.b.fdiv(e.const(F32, 1.0), e.sqrt(e.b.fadd(variance, unit.bits(W.FACTOR))))

    def normed(offset: Value, kind: Type) -> Value:
        scaled = e.b.fmul(centred(offset, kind), splat_to(e, inverse, kind))
        return e.fma(scaled, e.load(weight, kind, offset), e.load(bias, kind, offset))

    _put(e, unit, row, normed)


def _put(e: Emit, unit: Unit, row: Value, normed: Callable[[Value, Type], Value]) -> None:
    """Changes the row's records, its rows, or both; normed(byte offset, type) is what they hold."""
    n, records = unit.word(W.N), unit.word(W.RECORDS)

    def as_rows() -> None:
        out = unit.row(W.OUT, W.OUT_STRIDE, row)
        over_columns(e, n, lambda offset, kind: e.store(normed(offset, kind), out, offset))

    def as_records() -> None:
        n_groups = e.b.lshr(n, e.i64(5))
        block, in_block = e.b.udiv(row, e.i64(N_ROWS)), e.b.urem(row, e.i64(N_ROWS))
        first = e.add(records, e.mul(e.mul(block, n_groups), RECORD_BYTES))

        def group(g: Value, _: list[Value]) -> list[Value]:
            offsets = e.mul(g, 4 * GROUP), e.add(e.mul(g, 4 * GROUP), 64)
            first_half, second_half = (normed(offset, F32x16) for offset in offsets)
            quantise_group(e, first_half, second_half, e.add(first, e.mul(g, RECORD_BYTES)), in_block)
            return []

        e.loop(n_groups, [], group)

    # Records first: OUT may be X.
    e.when(e.b.icmp_signed("!=", records, e.i64(0)), as_records)
    e.when(e.b.icmp_signed("!=", unit.word(W.OUT), e.i64(0)), as_rows)


def _head(e: Emit, unit: Unit, row: Value) -> None:
    head, weight = unit.word(W.HEAD), unit.word(W.WEIGHT)

    def one(h: Value, _: list[Value]) -> list[Value]:
        start = e.mul(e.mul(h, head), 4)
        x, out = (e.add(unit.row(at, at + 1, row), start) for at in (W.X, W.OUT))
        inverse = _inverse(e, x, head, unit.bits(W.FACTOR))
        over_columns(e, head, lambda offset, kind: e.store(_normed(e, x, weight, inverse, offset, kind), out, offset))
        return []

    e.loop(e.b.udiv(unit.word(W.N), head), [], one)


KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType(
    {
        "rms": unit_code("norm_rms", _rms),
        "layer": unit_code("norm_layer", _layer),
        "head": unit_code("norm_head", _head),
    }
)
