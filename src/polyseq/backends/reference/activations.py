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


def silu(x: F32) -> F32:
    """Pure. x / (1 + e^-x)."""
    out = np.negative(x)
    np.exp(out, out=out)
    out += 1
    return np.divide(x, out, out=out)


def gelu(x: F32) -> F32:
    """Pure. x P(X <= x), X normal: x/2 erfc(-x / sqrt 2), so that the left tail keeps its digits."""
    z = np.abs(x) / np.float64(math.sqrt(2))
    t = 1 / (1 + z / 2)
    tail = t * np.exp(np.polynomial.polynomial.polyval(t, _ERFC) - z * z) / 2
    out: F32 = (x * np.where(x < 0, tail, 1 - tail)).astype(np.float32)
    return out


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


def softplus(x: F32) -> F32:
    """Pure. log(1 + e^x)."""
    return np.logaddexp(x, np.float32(0))


ACTIVATIONS: Mapping[str, Callable[[F32], F32]] = MappingProxyType(
    {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh, "softplus": softplus}
)
