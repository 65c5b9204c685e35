"""Rows of float32 become records (activation.py): the words other kernels use for it, and a unit that does only this.

Enters: 32 values of one row in two registers, or rows in memory. Leaves: that row's part of a record. Every kernel that
makes rows (norm, attention, gate times up) ends in `quantise_group`, so a row has the same bits wherever it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.emit import F32, Emit, F32x16, I8x16, I32x16, Value
from polyseq.backends.cpu.rows.activation import (
    GROUP,
    INV_127,
    LEAST,
    N_ROWS,
    RECORD_BYTES,
    ROW_BYTES,
    SCALE,
    SUM,
    SUM_A,
    SUM_B,
)
from polyseq.backends.cpu.rows.units import Unit, unit_code
from polyseq.backends.cpu.rows.words import Q


def quantise_group(e: Emit, first: Value, last: Value, record: Value, row: Value) -> None:
    """Changes row `row` (0..11, an int64 value) of the record at `record`: 32 f32 as two F32x16."""
    # As integers, |x| of floats compares like the floats, and NaN is above all: it is not lost on the way.
    size = [e.b.and_(e.view(v, I32x16), e.const(I32x16, 0x7FFFFFFF)) for v in (first, last)]
    larger = e.b.select(e.b.icmp_unsigned(">", size[0], size[1]), size[0], size[1])
    largest = e.view(e.max_unsigned(larger), F32)
    # "not less or equal" is true for NaN too.
    largest = e.b.select(e.b.fcmp_unordered(">", largest, e.const(F32, LEAST)), largest, e.const(F32, LEAST))
    inverse = e.splat(e.b.fdiv(e.const(F32, 127.0), largest))

    place = e.add(record, e.mul(row, ROW_BYTES))
    sums = []
    for i, v in enumerate((first, last)):
        rounded = e.rint(e.b.fmul(v, inverse))
        # Clipping also turns NaN into a number: what LLVM makes an integer must be one.
        clipped = e.minimum(e.maximum(rounded, e.const(F32x16, -127.0)), e.const(F32x16, 127.0))
        q = e.b.fptosi(clipped, I32x16)
        e.store(e.b.trunc(q, I8x16), place, 16 * i)
        sums.append(e.sum(q))

    e.store(e.b.fmul(largest, e.const(F32, INV_127)), place, SCALE)
    for total, offset in ((e.b.add(*sums), SUM), (sums[0], SUM_A), (sums[1], SUM_B)):
        e.store(e.b.sitofp(total, F32), place, offset)


def quantise_at(e: Emit, x: Value, record: Value, row: Value) -> None:
    """Changes row `row` of the record at `record`: the 32 f32 at address x."""
    quantise_group(e, e.load(x, F32x16), e.load(x, F32x16, 64), record, row)


def _row(e: Emit, unit: Unit, row: Value) -> None:
    """The unit "rows.quantise.rows": words `Q`."""
    n_groups, x = e.b.lshr(unit.word(Q.N_IN), e.i64(5)), unit.row(Q.X, Q.X_STRIDE, row)
    block = e.mul(e.b.mul(e.b.udiv(row, e.i64(N_ROWS)), n_groups), RECORD_BYTES)
    out, in_block = e.add(unit.word(Q.OUT), block), e.b.urem(row, e.i64(N_ROWS))
    e.each(
        n_groups, lambda g: quantise_at(e, e.add(x, e.mul(g, 4 * GROUP)), e.add(out, e.mul(g, RECORD_BYTES)), in_block)
    )


KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType({"rows": unit_code("quantise_rows", _row)})
