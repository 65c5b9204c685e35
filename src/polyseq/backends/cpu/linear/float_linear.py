"""The unit of linear ops whose weights are numbers: rows times panels, bias, activation, in cache-sized pieces.

Enters: a record (words `F` of linear/words.py), f32 rows, panels. Leaves: f32 rows. A unit is some columns of some
rows. It goes through the inputs a part at a time, so that 12 rows' part of x stays in the first-level cache while the
unit's panels pass by, and the panels' part in the second-level cache while its rows pass by:

    for inputs of 384:
        for 12 rows:
            for two panels:                        # float_gemm.py
                out (+)= x[rows, inputs] w[columns, inputs]^T
                out = act(out) after the last inputs

The parts are the same for every number of rows, so a row has the same bits whatever rows it is computed with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from polyseq.backends.cpu.compiler.assemble import object_code
from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.acts import ACTIVATIONS
from polyseq.backends.cpu.ir.emit import F32, Emit, F32x16, Value
from polyseq.backends.cpu.linear.units import load_if, over_blocks, padded
from polyseq.backends.cpu.linear.words import ACTS, F
from polyseq.backends.cpu.panels.panel_kind import N_COLUMNS
from polyseq.backends.cpu.rows.activation import N_ROWS
from polyseq.backends.cpu.rows.units import Unit
from polyseq.backends.cpu.words.records import R

_COLUMN_BYTES = 4 * N_COLUMNS
_MOST_INPUTS = 384  # of a part: 12 rows of it are 18 KB


def _rows(e: Emit, record: Value, step: Value, u0: Value, u1: Value, scratch: Value) -> None:
    """The unit "linear.float_linear.rows": words `F`. Rows go by first, then column parts: panels are used again."""
    unit = Unit(e, record, step, scratch)
    n_rows, per_unit = unit.step_word(unit.word(R.COUNT_WORD)), unit.word(R.PER_UNIT)
    n_row_parts = e.b.udiv(e.b.sub(e.add(n_rows, per_unit), e.i64(1)), per_unit)

    def one(i: Value) -> None:
        u = e.add(u0, i)
        start = e.b.mul(e.b.urem(u, n_row_parts), per_unit)
        columns, n = e.b.udiv(u, n_row_parts), e.least(per_unit, e.b.sub(n_rows, start))
        _Part(unit, columns, start, n).compute()
        unit.go_on(columns, start, n)

    e.each(e.b.sub(u1, u0), one)


class _Part:
    """One unit: `n` rows from `start` on, times the panels of a column part."""

    def __init__(self, unit: Unit, columns: Value, start: Value, n: Value) -> None:
        e = unit.e
        self.unit, self.e, self.start, self.n = unit, e, start, n
        self.n_in, self.n_out = unit.word(F.N_IN), unit.word(F.N_OUT)
        self.out_stride, self.x_stride = unit.word(F.OUT_STRIDE), unit.word(F.X_STRIDE)
        self.panel_bytes, self.bias = unit.word(F.PANEL_BYTES), unit.word(F.BIAS)
        self.first = e.b.mul(columns, unit.word(F.PANELS_PER_UNIT))
        self.stop = e.least(e.add(self.first, unit.word(F.PANELS_PER_UNIT)), unit.word(F.N_PANELS))
        n_whole = e.b.sub(e.least(self.stop, e.b.lshr(self.n_out, e.i64(4))), self.first)
        self.n_pairs, self.is_odd = e.b.lshr(n_whole, e.i64(1)), e.b.and_(n_whole, e.i64(1))
        self.is_ragged = e.b.sub(e.b.sub(self.stop, self.first), n_whole)

    def compute(self) -> None:
        e = self.e
        n_parts = e.b.udiv(e.add(self.n_in, _MOST_INPUTS - 1), e.i64(_MOST_INPUTS))
        e.each(n_parts, lambda i: over_blocks(e, self.start, self.n, partial(self._block, i)))

    def _block(self, part: Value, row: Value, n: Value) -> None:
        """Up to 12 rows times one part of the inputs of all the unit's panels."""
        e, unit = self.e, self.unit
        before = e.mul(part, _MOST_INPUTS)
        n_in = e.least(e.i64(_MOST_INPUTS), e.b.sub(self.n_in, before))
        x = e.add(unit.row(F.X, F.X_STRIDE, row), e.mul(before, 4))
        weights = e.add(unit.word(F.PANELS), e.b.mul(before, unit.word(F.INPUT_BYTES)))
        is_first = e.b.icmp_signed("==", part, e.i64(0))
        is_last = e.b.icmp_signed("==", e.add(before, n_in), self.n_in)
        accumulate = e.b.or_(unit.word(F.ACCUMULATE), e.b.zext(e.b.icmp_signed("!=", self.bias, e.i64(0)), self.n.type))
        accumulate = e.b.select(is_first, accumulate, e.i64(1))
        out, n_padded = unit.row(F.OUT, F.OUT_STRIDE, row), padded(e, n)

        def panels(first: Value, n_panels: int, gemm: F, *more: Value) -> None:
            """Whole panels first .. first + n_panels - 1."""
            place = e.add(out, e.mul(first, _COLUMN_BYTES))
            e.when(is_first, lambda: self._begin(place, first, n, n_panels))
            panel = e.add(weights, e.b.mul(first, self.panel_bytes))
            e.call(unit.word(gemm), n_padded, x, panel, place, self.out_stride, n_in, accumulate, self.x_stride, *more)
            e.when(is_last, lambda: self._end(place, self.out_stride, n, n_panels))

        e.each(self.n_pairs, lambda j: panels(e.add(self.first, e.mul(j, 2)), 2, F.PAIR_GEMM, self.panel_bytes))
        odd = e.add(self.first, e.mul(self.n_pairs, 2))
        e.each(self.is_odd, lambda _: panels(odd, 1, F.GEMM))
        last = e.add(odd, self.is_odd)

        def ragged(_: Value) -> None:
            panel, place = e.add(weights, e.b.mul(last, self.panel_bytes)), e.add(out, e.mul(last, _COLUMN_BYTES))
            self._ragged(x, panel, place, last, n, n_in, accumulate, is_first, is_last)

        e.each(self.is_ragged, ragged)

    def _begin(self, out: Value, panel: Value, n: Value, n_panels: int) -> None:
        """Changes n rows of whole panels: the bias, or what is there and the bias."""
        e = self.e

        def rows() -> None:
            bias = [e.load(self.bias, F32x16, e.add(e.mul(panel, _COLUMN_BYTES), 64 * j)) for j in range(n_panels)]
            adds = e.b.icmp_signed("!=", self.unit.word(F.ACCUMULATE), e.i64(0))

            def row(r: Value) -> None:
                place = e.add(out, e.b.mul(r, self.out_stride))
                for j, values in enumerate(bias):
                    there = e.b.select(adds, e.load(place, F32x16, 64 * j), e.const(F32x16, 0.0))
                    e.store(e.b.fadd(there, values), place, 64 * j)

            e.each(n, row)

        e.when(e.b.icmp_signed("!=", self.bias, e.i64(0)), rows)

    def _end(self, out: Value, stride: Value, n: Value, n_panels: int) -> None:
        """Changes n rows of whole panels: the activation of what is there."""
        e = self.e

        def with_act(i: int) -> None:
            def row(r: Value) -> None:
                place = e.add(out, e.b.mul(r, stride))
                for j in range(n_panels):
                    e.store(ACTIVATIONS[ACTS[i - 1]](e, e.load(place, F32x16, 64 * j)), place, 64 * j)

            e.each(n, row)

        e.match(self.unit.word(F.ACT), range(1, 1 + len(ACTS)), with_act)

    def _ragged(
        self,
        x: Value,
        panel: Value,
        out: Value,
        i_panel: Value,
        n: Value,
        n_in: Value,
        accumulate: Value,
        is_first: Value,
        is_last: Value,
    ) -> None:
        """The last panel, by way of scratch: what lies behind its columns is the next row's."""
        e, tile, stride = self.e, self.unit.scratch, self.e.i64(_COLUMN_BYTES)
        n_columns = e.b.sub(self.n_out, e.mul(i_panel, N_COLUMNS))
        bias = e.b.select(
            e.b.icmp_signed("!=", self.bias, e.i64(0)), e.add(self.bias, e.mul(i_panel, _COLUMN_BYTES)), e.i64(0)
        )
        keeps = e.b.or_(self.unit.word(F.ACCUMULATE), e.b.zext(e.b.not_(is_first), self.n.type))

        def each_number(do: Callable[[Value, Value, Value], None]) -> None:
            """do(its place in out, its place in scratch, byte offset of its column)."""

            def row(r: Value) -> None:
                here, there = e.add(out, e.b.mul(r, self.out_stride)), e.add(tile, e.b.mul(r, stride))
                e.each(n_columns, lambda c: do(e.add(here, e.mul(c, 4)), e.add(there, e.mul(c, 4)), e.mul(c, 4)))

            e.each(n, row)

        def begin(here: Value, there: Value, at: Value) -> None:
            before = load_if(e, e.b.icmp_signed("!=", keeps, e.i64(0)), here)
            more = load_if(e, e.b.and_(is_first, e.b.icmp_signed("!=", bias, e.i64(0))), e.add(bias, at))
            e.store(e.b.fadd(before, more), there)

        e.each(e.i64(N_ROWS), lambda r: e.store(e.const(F32x16, 0.0), tile, e.mul(r, _COLUMN_BYTES)))
        each_number(begin)
        e.call(self.unit.word(F.GEMM), padded(e, n), x, panel, tile, stride, n_in, e.i64(1), self.x_stride)
        e.when(is_last, lambda: self._end(tile, stride, n, 1))
        each_number(lambda here, there, _: e.store(e.load(there, F32), here))


def _compiled(features: Features) -> ObjectCode:
    return object_code(_rows, 5, f"float_linear_rows_{features.isa.name}", features)


KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType({"rows": _compiled})
