"""Types whose codes stand for entries of a table: every weight is a small integer times a scale, and here are both.

Enters: rows as stored, [n, bytes per row] u8. Leaves: codes [n, n_in] i8 and float32 scales per 16 or 32 inputs, with
`scale * code` equal to `gguf.quants.dequantize` bit for bit: all products fit float32's 24 bits. The tables of the IQ
types are gguf's; their integers are found by dividing what it dequantises by the scale, an exact division.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Q
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]


def _f16(b: U8) -> F32:
    """Pure. 2 bytes [..., 2] as float32 [...]."""
    return np.ascontiguousarray(b).view(np.float16).astype(np.float32)


def _u16(b: U8) -> NDArray[np.uint16]:
    return np.ascontiguousarray(b).view(np.uint16)


def _u32(b: U8) -> NDArray[np.uint32]:
    return np.ascontiguousarray(b).view(np.uint32)


def _halves(b: U8) -> U8:
    """Pure. Bytes [..., n] as their low and high halves [..., 2n]."""
    return np.stack((b & 15, b >> 4), axis=-1).reshape(*b.shape[:-1], -1)


# Scales of blocks [n, bytes per block] -> [n, scales per block]. Order of operations as in gguf: each is exact.


def _iq2_xxs(b: U8) -> F32:
    return _f16(b[:, :2]) * (np.float32(0.5) + (_u32(b[:, 2:])[:, 1::2] >> 28).astype(np.float32)) * np.float32(0.25)


def _iq2_xs(b: U8) -> F32:
    return _f16(b[:, :2]) * (np.float32(0.5) + _halves(b[:, 66:74])) * np.float32(0.25)


def _iq2_s(b: U8) -> F32:
    return _f16(b[:, :2]) * (np.float32(0.5) + _halves(b[:, 74:82])) * np.float32(0.25)


def _iq3_xxs(b: U8) -> F32:
    return _f16(b[:, :2]) * (np.float32(0.5) + (_u32(b[:, 66:98]) >> 28).astype(np.float32)) * np.float32(0.5)


def _iq3_s(b: U8) -> F32:
    return _f16(b[:, :2]) * (1 + 2 * _halves(b[:, 106:110])).astype(np.float32)


def _iq1_s(b: U8) -> F32:
    factor = 2 * (_u16(b[:, 34:50]) >> 12 & 7) + 1
    return _f16(b[:, :2]) * factor.astype(np.float32) / np.float32(8)  # its integers are eighths


def _iq1_m(b: U8) -> F32:
    words = _u16(b[:, 48:56])
    d = np.bitwise_or.reduce((words & 0xF000) >> np.array([12, 8, 4, 0], np.uint16), axis=1, keepdims=True)
    factor = 2 * (words[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(len(b), -1) + 1
    return d.astype(np.uint16).view(np.float16).astype(np.float32) * factor.astype(np.float32) / np.float32(8)


# By names: an older gguf knows fewer types.
_SCALES: Mapping[str, Callable[[U8], F32]] = MappingProxyType(
    {
        "IQ2_XXS": _iq2_xxs,
        "IQ2_XS": _iq2_xs,
        "IQ2_S": _iq2_s,
        "IQ3_XXS": _iq3_xxs,
        "IQ3_S": _iq3_s,
        "IQ1_S": _iq1_s,
        "IQ1_M": _iq1_m,
    }
)
INTEGERS = frozenset(Q[name] for name in _SCALES if name in Q.__members__)


def scales_of(rows: U8, qtype: Q) -> tuple[NDArray[np.int8], F32]:
    """Pure. rows [n, bytes per row] u8 -> codes [n, n_in] i8, scales [n, n_in / inputs per scale] f32."""
    n_bytes = GGML_QUANT_SIZES[qtype][1]
    scale = _SCALES[qtype.name](rows.reshape(-1, n_bytes)).reshape(len(rows), -1)
    values = quants.dequantize(rows, qtype)
    per_scale = values.reshape(*scale.shape, -1)
    nothing = (scale == 0)[..., None]
    with np.errstate(all="ignore"):
        codes = np.rint(per_scale / np.where(nothing, 1, scale[..., None]))
        codes = np.where(nothing, 0, codes).astype(np.int8).reshape(values.shape)
    return codes, scale
