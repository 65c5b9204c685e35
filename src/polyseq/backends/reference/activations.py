"""Element-wise functions in float32, each as `graph/ops.py` defines it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

# erfc(z) = t exp(-z^2 + polynomial in t), t = 1 / (1 + z / 2), z >= 0; relative error below 1.2e-7 (Numerical Recipes,
# 6.2), lowest power of t first.
_ERFC = (
    -1.26551223,
    1.00002368,
    0.37409196,
    0.09678418,
    -0.18628806,
    0.27886807,
    -1.13520398,
    1.48851587,
    -0.82215223,
    0.17087277,
)

_PIECE = 1 << 15  # numbers worked on at a time, so that they stay in the cache through all the passes


def silu(x: F32) -> F32:
    """Pure. x / (1 + e^-x)."""
    out = np.negative(x)
    np.exp(out, out=out)
    out += 1
    return np.divide(x, out, out=out)


def gelu(x: F32) -> F32:
    """Pure. x P(X <= x), X normal: max(x, 0) - |x| / 2 erfc(|x| / sqrt 2), so that the left tail keeps its digits."""
    out = np.empty_like(x)
    values, results = x.reshape(-1), out.reshape(-1)
    for i in range(0, len(values), _PIECE):
        _gelu_piece(values[i : i + _PIECE], results[i : i + _PIECE])
    return out


def _gelu_piece(x: F32, out: F32) -> None:
    """Changes out [n]."""
    np.abs(x, out=out)
    t = out * np.float32(math.sqrt(1 / 8))
    t += 1
    np.reciprocal(t, out=t)
    exponent = t * np.float32(_ERFC[-1])
    for c in _ERFC[-2:0:-1]:
        exponent += np.float32(c)
        exponent *= t
    exponent += np.float32(_ERFC[0])
    exponent -= x * x / 2
    np.exp(exponent, out=exponent)
    exponent *= t
    out *= exponent
    out *= np.float32(-0.5)
    out += np.maximum(x, 0)


def gelu_tanh(x: F32) -> F32:
    """Pure. The tanh approximation of `gelu`."""
    out = x * x
    out *= np.float32(0.044715)
    out += 1
    out *= x
    out *= np.float32(math.sqrt(2 / math.pi))
    np.tanh(out, out=out)
    out += 1
    out *= x
    out *= np.float32(0.5)
    return out


def tanh(x: F32) -> F32:
    """Pure."""
    return np.tanh(x)


def softplus(x: F32) -> F32:
    """Pure. log(1 + e^x)."""
    return np.logaddexp(x, np.float32(0))


ACTIVATIONS: Mapping[str, Callable[[F32], F32]] = MappingProxyType(
    {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh, "softplus": softplus, "tanh": tanh}
)
