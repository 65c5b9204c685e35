"""Rows of float32 moved from one place in memory to another, any number of numbers long."""

from __future__ import annotations

from polyseq.backends.cpu.ir.emit import F32, Emit, F32x16, Type, Value


def copy_row(e: Emit, to: Value, source: Value, n: Value) -> None:
    """Changes n f32 at `to`: those at `source`, 16 at a time as long as there are."""

    def one(offset: Value, kind: Type) -> None:
        e.store(e.load(source, kind, offset), to, offset)

    n_whole = e.b.lshr(n, e.i64(4))
    e.each(n_whole, lambda i: one(e.mul(i, 64), F32x16))
    start = e.mul(n_whole, 64)
    e.each(e.b.and_(n, e.i64(15)), lambda i: one(e.add(start, e.mul(i, 4)), F32))
