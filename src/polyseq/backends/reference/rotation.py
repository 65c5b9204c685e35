"""Rotary positions as complex numbers: a pair (a, b) is a + ib, and turning it by t is a product with e^(it)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polyseq.graph.ops import RopeParams

F32 = NDArray[np.float32]


def turns(params: RopeParams, pos: NDArray[np.int32], factors: F32 | None) -> NDArray[np.complex64]:
    """Pure. e^(i theta(p, j)) for pos [n] -> [n, n_rot / 2] c64; angles in float64, as positions grow large."""
    j = np.arange(params.n_rot // 2)
    frequency = params.freq_scale * params.freq_base ** (-2.0 * j / params.n_rot)
    if factors is not None:
        frequency = frequency / factors
    turn: NDArray[np.complex64] = np.exp(1j * pos[:, None] * frequency).astype(np.complex64)
    return turn


def rotated(x: F32, turn: NDArray[np.complex64], mode: Literal["norm", "neox"]) -> F32:
    """Pure. x [n, n_head, head_dim] with the first n_rot dims of every head turned; `mode` says which dims pair."""
    n_rot = 2 * turn.shape[1]
    out = _neighbours(x[..., :n_rot], turn[:, None]) if mode == "norm" else _halves(x[..., :n_rot], turn[:, None])
    return out if n_rot == x.shape[2] else np.concatenate((out, x[..., n_rot:]), axis=2)


def _neighbours(x: F32, turn: NDArray[np.complex64]) -> F32:
    pairs = np.ascontiguousarray(x).view(np.complex64)  # [n, n_head, n_rot / 2]
    return (pairs * turn).view(np.float32)


def _halves(x: F32, turn: NDArray[np.complex64]) -> F32:
    a, b = np.split(x, 2, axis=2)
    cos, sin = turn.real, turn.imag
    return np.concatenate((a * cos - b * sin, a * sin + b * cos), axis=2)
