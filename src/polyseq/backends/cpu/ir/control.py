"""Loops and choices for kernels that decide more than they compute, beside those of emit.py.

Enters: conditions and bodies. Leaves: their IR. Values that change from round to round are handed from one to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyseq.backends.cpu.ir.emit import I32, I64, Emit, Value

Values = list[Value]


def while_(
    e: Emit, start: Sequence[Value], go_on: Callable[[Values], Value], body: Callable[[Values], Values]
) -> Values:
    """values = start; while go_on(values): values = body(values); returns values."""
    before, head = e.b.block, e.b.append_basic_block("while")
    inside, after = e.b.append_basic_block("do"), e.b.append_basic_block("done")
    e.b.branch(head)
    e.b.position_at_end(head)
    values = [e.b.phi(value.type) for value in start]
    for phi, value in zip(values, start, strict=True):
        phi.add_incoming(value, before)
    e.b.cbranch(go_on(values), inside, after)
    e.b.position_at_end(inside)
    for phi, value in zip(values, body(values), strict=True):
        phi.add_incoming(value, e.b.block)
    e.b.branch(head)
    e.b.position_at_end(after)
    return values


def either(e: Emit, condition: Value, yes: Callable[[], Values], no: Callable[[], Values]) -> Values:
    """yes() if condition else no()."""
    blocks = [e.b.append_basic_block(name) for name in ("yes", "no", "after")]
    e.b.cbranch(condition, *blocks[:2])
    ends, results = [], []
    for block, do in zip(blocks[:2], (yes, no), strict=True):
        e.b.position_at_end(block)
        results.append(do())
        ends.append(e.b.block)
        e.b.branch(blocks[2])
    e.b.position_at_end(blocks[2])
    out = [e.b.phi(value.type) for value in results[0]]
    for values, end in zip(results, ends, strict=True):
        for phi, value in zip(out, values, strict=True):
            phi.add_incoming(value, end)
    return out


class Words:
    """Int64 words at one address, by number, and integer arrays at addresses that such words hold."""

    def __init__(self, e: Emit, address: Value) -> None:
        self.e, self._address = e, address

    def get(self, word: Value | int) -> Value:
        return self.e.load(self._address, I64, self.e.mul(self.e.i64(word), 8))

    def put(self, word: Value | int, value: Value | int) -> None:
        self.e.store(self.e.i64(value), self._address, self.e.mul(self.e.i64(word), 8))

    def i32(self, array: int, i: Value) -> Value:
        """array[i], where a word holds the array's address."""
        return get_i32(self.e, self.get(array), i)

    def i64(self, array: int, i: Value) -> Value:
        return self.e.load(self.get(array), I64, self.e.mul(i, 8))

    def put_i32(self, array: int, i: Value, value: Value) -> None:
        put_i32(self.e, self.get(array), i, value)

    def put_i64(self, array: int, i: Value, value: Value) -> None:
        self.e.store(value, self.get(array), self.e.mul(i, 8))


def get_i32(e: Emit, address: Value, i: Value | int) -> Value:
    """The i32 with index i at an address, as int64."""
    return e.b.sext(e.load(address, I32, e.mul(e.i64(i), 4)), I64)


def put_i32(e: Emit, address: Value, i: Value | int, value: Value | int) -> None:
    """Changes the i32 with index i at an address."""
    e.store(e.b.trunc(e.i64(value), I32), address, e.mul(e.i64(i), 4))


def less(e: Emit, a: Value, b: Value | int) -> Value:
    """a < b."""
    return e.b.icmp_signed("<", a, e.i64(b))


def equal(e: Emit, a: Value, b: Value | int) -> Value:
    """a == b."""
    return e.b.icmp_signed("==", a, e.i64(b))


def larger(e: Emit, a: Value, b: Value) -> Value:
    """max(a, b)."""
    return e.b.select(less(e, a, b), b, a)
