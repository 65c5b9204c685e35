"""What all units over rows have in common: which rows a call is for, and walking the columns of one.

Enters: what to do with one row, or with one vector of it. Leaves: bodies and object code of C functions
unit(record, step, u0, u1, scratch).
"""

from __future__ import annotations

from collections.abc import Callable

from polyseq.backends.cpu.compiler.assemble import object_code
from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.emit import F32, I64, Body, Emit, F32x16, Type, Value, vec
from polyseq.backends.cpu.words.records import RECORD_BYTES, R

ONE = vec(F32, 1)
_LANES = 16


class Unit:
    """One call: its record's and its step's words."""

    def __init__(self, e: Emit, record: Value, step: Value, scratch: Value) -> None:
        self.e, self._record, self._step, self.scratch = e, record, step, scratch

    def word(self, word: int) -> Value:
        """A word of the record."""
        return self.e.load(self._record, I64, 8 * word)

    def bits(self, word: int) -> Value:
        """A word of the record that holds the bits of an f32."""
        return self.e.load(self._record, F32, 8 * word)

    def step_word(self, word: Value) -> Value:
        """A word of the step, whose number is a value."""
        return self.e.load(self._step, I64, self.e.mul(word, 8))

    def go_on(self, part: Value, first: Value, n: Value) -> None:
        """Calls the units that go on with a part of the columns, for n rows from `first` on."""
        e, n_then = self.e, self.word(R.N_THEN)
        records = e.add(self.word(R.THEN), e.mul(e.b.mul(part, n_then), RECORD_BYTES))

        def one(i: Value) -> None:
            record = e.add(records, e.mul(i, RECORD_BYTES))
            e.call(e.load(record, I64, 8 * R.UNIT), record, self._step, first, e.add(first, n), self.scratch)

        e.each(n_then, one)

    def row(self, base: int, stride: int, row: Value) -> Value:
        """The address of a row, by the words of its base and stride."""
        return self.e.add(self.word(base), self.e.mul(row, self.word(stride)))


def over_rows(do_row: Callable[[Emit, Unit, Value], None]) -> Body:
    """Pure. A unit that does every row of u0 .. u1 - 1 by itself."""

    def body(e: Emit, record: Value, step: Value, u0: Value, u1: Value, scratch: Value) -> None:
        unit = Unit(e, record, step, scratch)
        n_rows, per_unit = unit.step_word(unit.word(R.COUNT_WORD)), unit.word(R.PER_UNIT)
        first, stop = e.mul(u0, per_unit), e.mul(u1, per_unit)
        stop = e.b.select(e.b.icmp_signed("<", stop, n_rows), stop, n_rows)
        e.each(e.b.sub(stop, first), lambda i: do_row(e, unit, e.add(first, i)))

    return body


def over_columns(e: Emit, n: Value, do: Callable[[Value, Type], None]) -> None:
    """do(byte offset, type) for n f32: in vectors of 16, then one by one."""
    n_whole = e.b.lshr(n, e.i64(4))
    e.each(n_whole, lambda i: do(e.mul(i, 4 * _LANES), F32x16))
    start = e.mul(n_whole, 4 * _LANES)
    e.each(e.b.and_(n, e.i64(_LANES - 1)), lambda i: do(e.add(start, e.mul(i, 4)), ONE))


def sum_columns(e: Emit, n: Value, term: Callable[[Value, Type, Value], Value]) -> Value:
    """The sum over n f32, grown by sums = term(byte offset, type, sums): in 16 lanes, then one by one; f32."""
    n_whole = e.b.lshr(n, e.i64(4))
    zeros = e.const(F32x16, 0.0)
    lanes = e.loop(n_whole, [zeros], lambda i, sums: [term(e.mul(i, 4 * _LANES), F32x16, sums[0])])[0]
    start = e.mul(n_whole, 4 * _LANES)
    left = e.b.and_(n, e.i64(_LANES - 1))
    last = e.loop(left, [e.const(ONE, 0.0)], lambda i, sums: [term(e.add(start, e.mul(i, 4)), ONE, sums[0])])[0]
    return e.b.fadd(e.sum(lanes), e.lane(last, 0))


def splat_to(e: Emit, x: Value, kind: Type) -> Value:
    """An f32 in every lane of a vector type."""
    return e.splat(x, kind.count)


def unit_code(name: str, do_row: Callable[[Emit, Unit, Value], None]) -> Callable[[Features], ObjectCode]:
    """Pure. A factory of the unit's object code, for `KERNELS`."""
    return lambda features: object_code(over_rows(do_row), 5, name, features)
