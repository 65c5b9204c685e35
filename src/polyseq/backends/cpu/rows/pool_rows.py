"""The mean of each sequence's rows: pool_rows.mean.

Enters: rows f32 and where each sequence's rows are (seq_tiles.py), by the words `M` of seq_words.py. Leaves: a row per
sequence. Rows are added one after another, so a mean has the same bits whatever else is in the ubatch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.emit import F32, I32, I64, Emit, Type, Value
from polyseq.backends.cpu.rows.seq_words import M
from polyseq.backends.cpu.rows.units import Unit, over_columns, splat_to, unit_code
from polyseq.backends.cpu.words.records import S


def _mean(e: Emit, unit: Unit, seq: Value) -> None:
    span = e.add(unit.step_word(e.i64(S.SPANS)), e.mul(seq, 8))
    start, n = (e.b.sext(e.load(span, I32, at), I64) for at in (0, 4))
    x, x_stride, out = unit.row(M.X, M.X_STRIDE, start), unit.word(M.X_STRIDE), unit.row(M.OUT, M.OUT_STRIDE, seq)
    count = e.b.sitofp(n, F32)

    def columns(at: Value, kind: Type) -> None:
        def add(i: Value, sums: list[Value]) -> list[Value]:
            return [e.b.fadd(sums[0], e.load(e.add(x, e.b.mul(i, x_stride)), kind, at))]

        total = e.loop(n, [e.const(kind, 0.0)], add)[0]
        e.store(e.b.fdiv(total, splat_to(e, count, kind)), out, at)

    over_columns(e, unit.word(M.N), columns)


KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType({"mean": unit_code("pool_mean", _mean)})
