"""Activation functions on registers of float32, each as graph/ops.py defines it.

Enters and leaves: an F32x16 (or any f32 vector). Relative errors are a few units of the seventh digit: `exp` is exp2's
polynomial, erfc the reference's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from polyseq.backends.cpu.ir.emit import Emit, Value

# erfc(z) = t e^(-z^2 + polynomial in t), t = 1 / (1 + z / 2), z >= 0 (Numerical Recipes, 6.2), highest power first.
_ERFC = (
    0.17087277,
    -0.82215223,
    1.48851587,
    -1.13520398,
    0.27886807,
    -0.18628806,
    0.09678418,
    0.37409196,
    1.00002368,
    -1.26551223,
)


def silu(e: Emit, x: Value) -> Value:
    """x / (1 + e^-x)."""
    one = e.const(x.type, 1.0)
    return e.b.fdiv(x, e.b.fadd(one, e.exp(e.b.fneg(x))))


def gelu_tanh(e: Emit, x: Value) -> Value:
    """x / 2 (1 + tanh(y)) = x / (1 + e^-2y), y = sqrt(2 / pi) (x + 0.044715 x^3)."""
    c = 2 * math.sqrt(2 / math.pi)
    square = e.b.fmul(x, x)
    twice_y = e.b.fmul(x, e.fma(square, e.const(x.type, 0.044715 * c), e.const(x.type, c)))
    return e.b.fdiv(x, e.b.fadd(e.const(x.type, 1.0), e.exp(e.b.fneg(twice_y))))


def gelu(e: Emit, x: Value) -> Value:
    """x P(X <= x), X normal: max(x, 0) - |x| / 2 erfc(|x| / sqrt 2)."""
    kind = x.type
    size = e.abs(x)
    t = e.b.fdiv(e.const(kind, 1.0), e.fma(size, e.const(kind, math.sqrt(1 / 8)), e.const(kind, 1.0)))
    power = e.const(kind, _ERFC[0])
    for coefficient in _ERFC[1:]:
        power = e.fma(power, t, e.const(kind, coefficient))
    power = e.fma(e.b.fmul(x, x), e.const(kind, -0.5), power)
    half_tail = e.b.fmul(e.b.fmul(t, e.const(kind, 0.5)), e.exp(power))
    positive = e.b.select(e.b.fcmp_unordered(">", x, e.const(kind, 0.0)), x, e.const(kind, 0.0))
    return e.b.fsub(positive, e.b.fmul(size, half_tail))


ACTIVATIONS: Mapping[str, Callable[[Emit, Value], Value]] = MappingProxyType(
    {"silu": silu, "gelu_tanh": gelu_tanh, "gelu": gelu}
)
