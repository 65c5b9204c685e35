"""Rotation by position: rope.norm turns neighbours (2j, 2j + 1), rope.neox dims (j, j + n_rot / 2) of every head.

Enters: rows f32 and their turns (turns.py: cosines, then sines), by the words `W` of rows/words.py. Leaves: rows f32,
maybe in place. Dims from n_rot on are copied. n_rot is a multiple of 32.

    norm   x     a0 b0 a1 b1 ...      out = x * (c0 c0 c1 c1 ...) + (b0 a0 b1 a1 ...) * (-s0 s0 -s1 s1 ...)
    neox   x     a0 a1 ... b0 b1 ...  a' = a * c - b * s,  b' = b * c + a * s
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from llvmlite import ir

from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.emit import F32, Emit, F32x16, Value, vec
from polyseq.backends.cpu.rows.units import Unit, over_columns, unit_code
from polyseq.backends.cpu.rows.words import W

_LINE = 64
_TWICE = [i // 2 for i in range(16)]  # c0 c0 c1 c1 ...
_SWAPPED = [i ^ 1 for i in range(16)]
_SIGNS = ir.Constant(F32x16, [-1.0, 1.0] * 8)
_HALF = vec(F32, 8)

Turn = Callable[[Emit, Value, Value, Value, Value], None]


def _neighbours(e: Emit, x: Value, out: Value, turns: Value, n_rot: Value) -> None:
    sines = e.add(turns, e.mul(n_rot, 2))

    def vector(i: Value, _: list[Value]) -> list[Value]:
        offset, half = e.mul(i, _LINE), e.mul(i, _LINE // 2)
        here = e.load(x, F32x16, offset)
        cosine, sine = (e.take(e.load(at, _HALF, half), _TWICE) for at in (turns, sines))
        turned = e.fma(e.take(here, _SWAPPED), e.b.fmul(sine, _SIGNS), e.b.fmul(here, cosine))
        e.store(turned, out, offset)
        return []

    e.loop(e.b.lshr(n_rot, e.i64(4)), [], vector)


def _halves(e: Emit, x: Value, out: Value, turns: Value, n_rot: Value) -> None:
    half = e.mul(n_rot, 2)

    def vector(i: Value, _: list[Value]) -> list[Value]:
        low = e.mul(i, _LINE)
        high = e.add(low, half)
        a, b, cosine, sine = (e.load(at, F32x16, o) for at, o in ((x, low), (x, high), (turns, low), (turns, high)))
        e.store(e.fma(e.b.fneg(b), sine, e.b.fmul(a, cosine)), out, low)
        e.store(e.fma(a, sine, e.b.fmul(b, cosine)), out, high)
        return []

    e.loop(e.b.lshr(n_rot, e.i64(5)), [], vector)


def _rope(turn: Turn) -> Callable[[Emit, Unit, Value], None]:
    def do_row(e: Emit, unit: Unit, row: Value) -> None:
        head, n_rot = unit.word(W.HEAD), unit.word(W.N_ROT)
        turns = e.add(unit.step_word(unit.word(W.TURNS)), e.mul(e.mul(row, n_rot), 4))
        rest, n_bytes = e.b.sub(head, n_rot), e.mul(n_rot, 4)

        def one(h: Value, _: list[Value]) -> list[Value]:
            start = e.mul(e.mul(h, head), 4)
            x, out = (e.add(unit.row(at, at + 1, row), start) for at in (W.X, W.OUT))
            turn(e, x, out, turns, n_rot)
            after, out_after = e.add(x, n_bytes), e.add(out, n_bytes)
            over_columns(e, rest, lambda offset, kind: e.store(e.load(after, kind, offset), out_after, offset))
            return []

        e.loop(e.b.udiv(unit.word(W.N), head), [], one)

    return do_row


KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType(
    {"norm": unit_code("rope_norm", _rope(_neighbours)), "neox": unit_code("rope_neox", _rope(_halves))}
)
