"""Ops that go element by element: rows.add, .mul, .scale, .act_<f>, .glu_<f>, and which rows: .select, .take.

Enters: rows f32, by the words `W` of rows/words.py. Leaves: rows f32, maybe in place of the first. An element's value
depends on nothing but the elements it is made of, so any cut into units gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.acts import ACTIVATIONS
from polyseq.backends.cpu.ir.emit import I8, I32, I64, Emit, Type, Value
from polyseq.backends.cpu.rows.units import Unit, over_columns, splat_to, unit_code
from polyseq.backends.cpu.rows.words import W

Pair = Callable[[Emit, Value, Value], Value]


def _pairs(f: Pair, e: Emit, unit: Unit, row: Value) -> None:
    """out = f(x, y)."""
    x, y, out = (unit.row(at, at + 1, row) for at in (W.X, W.Y, W.OUT))

    def columns(offset: Value, kind: Type) -> None:
        e.store(f(e, e.load(x, kind, offset), e.load(y, kind, offset)), out, offset)

    over_columns(e, unit.word(W.N), columns)


def _singles(f: Callable[[Emit, Value], Value], e: Emit, unit: Unit, row: Value) -> None:
    """out = f(x)."""
    x, out = (unit.row(at, at + 1, row) for at in (W.X, W.OUT))
    over_columns(e, unit.word(W.N), lambda offset, kind: e.store(f(e, e.load(x, kind, offset)), out, offset))


def _scale(e: Emit, unit: Unit, row: Value) -> None:
    factor = unit.bits(W.FACTOR)
    _singles(lambda e, x: e.b.fmul(x, splat_to(e, factor, x.type)), e, unit, row)


def _select(e: Emit, unit: Unit, row: Value) -> None:
    """out = x where the row's mask is true, else y."""
    chosen = e.b.icmp_unsigned("!=", e.load(unit.word(W.ROWS), I8, row), e.const(I8, 0))
    _pairs(lambda e, x, y: e.b.select(chosen, x, y), e, unit, row)


def _take(e: Emit, unit: Unit, row: Value) -> None:
    """out[row] = x[rows[row]]."""
    source = e.b.sext(e.load(unit.word(W.ROWS), I32, e.mul(row, 4)), I64)
    x, out = unit.row(W.X, W.X_STRIDE, source), unit.row(W.OUT, W.OUT_STRIDE, row)
    over_columns(e, unit.word(W.N), lambda offset, kind: e.store(e.load(x, kind, offset), out, offset))


def _gated(act: Callable[[Emit, Value], Value]) -> Pair:
    return lambda e, gate, up: e.b.fmul(act(e, gate), up)


KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType(
    {
        "add": unit_code("rows_add", partial(_pairs, lambda e, x, y: e.b.fadd(x, y))),
        "mul": unit_code("rows_mul", partial(_pairs, lambda e, x, y: e.b.fmul(x, y))),
        "scale": unit_code("rows_scale", _scale),
        "select": unit_code("rows_select", _select),
        "take": unit_code("rows_take", _take),
        **{f"act_{name}": unit_code(f"rows_act_{name}", partial(_singles, f)) for name, f in ACTIVATIONS.items()},
        **{f"glu_{name}": unit_code(f"rows_glu_{name}", partial(_pairs, _gated(f))) for name, f in ACTIVATIONS.items()},
    }
)
