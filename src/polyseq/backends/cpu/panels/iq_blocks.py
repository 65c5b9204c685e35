"""Types whose codes stand for rows of a large table: every weight is a small integer times a scale, and here are both.

Enters: blocks of 256 inputs as stored, [n_blocks, bytes per block] u8. Leaves: the integers as bytes (+ 128, as panels
keep 8-bit codes) and float32 scales per 16 or 32 inputs; their products equal `gguf.quants.dequantize` bit for bit,
since every one fits float32's 24 bits. The tables are gguf's. 8 inputs are looked up at once, as one 64-bit word, and
their signs are put on all 8 by one exclusive or (and a one added where a byte was inverted: tables hold no zero there).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Q
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]
F32 = NDArray[np.float32]

_ONES = np.uint64(0x0101010101010101)
_TO_UNSIGNED = np.uint64(0x8080808080808080)


@cache
def _grid(name: str) -> NDArray[np.float32]:
    """Pure. A type's table [n, 4 or 8]."""
    codec: Any = quants._type_traits[Q[name]]
    codec.init_grid()
    return np.asarray(codec.grid, np.float32).reshape(codec.grid_shape)


@cache
def _words(name: str) -> NDArray[np.unsignedinteger]:
    """Pure. The same as words of 4 or 8 bytes [n]."""
    grid = _grid(name)
    return grid.astype(np.uint8).view(f"u{grid.shape[1]}").ravel()


@cache
def _ternary() -> U64:
    """Pure. IQ1: the table's -1, 0 and 1 as eighths, an eighth more (first half) or less (second) -> [2 * n] + 128."""
    eighths = 8 * _grid("IQ1_S")
    return np.concatenate((eighths + 129, eighths + 127)).astype(np.uint8).view(np.uint64).ravel()


# Byte i of entry s is 255 where bit i of s is set.
_MASKS: U64 = (
    (np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") * 255).view("u8").ravel()
)


@cache
def _masks_of_7() -> U64:
    """Pure. The same for signs stored as 7 bits: the eighth makes their number even."""
    return _MASKS[np.frombuffer(quants.IQ2_XXS.ksigns, np.uint8)]


def _signed(words: U64, masks: U64) -> U64:
    """Changes words, bytes 1..127: negative where a mask byte is 255, then + 128."""
    words ^= masks
    words += masks & _ONES
    words ^= _TO_UNSIGNED
    return words


def _f16(b: U8) -> F32:
    """Pure. 2 bytes [n, 2] as float32 [n, 1]."""
    return np.ascontiguousarray(b).view(np.float16).astype(np.float32)


def _u16(b: U8) -> NDArray[np.uint16]:
    return np.ascontiguousarray(b).view(np.uint16)


def _u32(b: U8) -> NDArray[np.uint32]:
    return np.ascontiguousarray(b).view(np.uint32)


def _halves(b: U8) -> U8:
    """Pure. Bytes [n, m] as their low and high halves [n, 2m]."""
    return np.stack((b & 15, b >> 4), axis=-1).reshape(len(b), -1)


def _bits(words: NDArray[np.unsignedinteger], shifts: tuple[int, ...], mask: int) -> NDArray[np.unsignedinteger]:
    """Pure. Words [n, m] as their bit fields [n, m * len(shifts)]."""
    fields = np.empty((*words.shape, len(shifts)), words.dtype)
    for i, shift in enumerate(shifts):
        np.bitwise_and(words >> words.dtype.type(shift), words.dtype.type(mask), out=fields[..., i])
    return fields.reshape(len(words), -1)


_SEVENS = (0, 7, 14, 21)

# Blocks -> (integers [n_blocks, 32] u64, scales [n_blocks, 8 or 16]). Order of operations as in gguf: each is exact.


def _iq2_xxs(b: U8) -> tuple[U64, F32]:
    pairs = _u32(b[:, 2:])
    places, extra = np.ascontiguousarray(pairs[:, 0::2]).view(np.uint8), np.ascontiguousarray(pairs[:, 1::2])
    scale = _f16(b[:, :2]) * (np.float32(0.5) + (extra >> 28).astype(np.float32)) * np.float32(0.25)
    return _signed(_words("IQ2_XXS")[places], _masks_of_7()[_bits(extra, _SEVENS, 127)]), scale


def _iq2_xs(b: U8) -> tuple[U64, F32]:
    q = _u16(b[:, 2:66])
    scale = _f16(b[:, :2]) * (np.float32(0.5) + _halves(b[:, 66:74])) * np.float32(0.25)
    return _signed(_words("IQ2_XS")[q & 511], _masks_of_7()[q >> 9]), scale


def _iq2_s(b: U8) -> tuple[U64, F32]:
    places = b[:, 2:34] | _bits(b[:, 66:74], (0, 2, 4, 6), 3).astype(np.uint16) << 8
    scale = _f16(b[:, :2]) * (np.float32(0.5) + _halves(b[:, 74:82])) * np.float32(0.25)
    return _signed(_words("IQ2_S")[places], _MASKS[b[:, 34:66]]), scale


def _iq3_xxs(b: U8) -> tuple[U64, F32]:
    extra = _u32(b[:, 66:98])
    scale = _f16(b[:, :2]) * (np.float32(0.5) + (extra >> 28).astype(np.float32)) * np.float32(0.5)
    words = _words("IQ3_XXS")[b[:, 2:66]].view(np.uint64)
    return _signed(words, _masks_of_7()[_bits(extra, _SEVENS, 127)]), scale


def _iq3_s(b: U8) -> tuple[U64, F32]:
    places = b[:, 2:66] | _bits(b[:, 66:74], tuple(range(8)), 1).astype(np.uint16) << 8
    scale = _f16(b[:, :2]) * (1 + 2 * _halves(b[:, 106:110])).astype(np.float32)
    return _signed(_words("IQ3_S")[places].view(np.uint64), _MASKS[b[:, 74:106]]), scale


def _iq1_s(b: U8) -> tuple[U64, F32]:
    high = _u16(b[:, 34:50])
    places = b[:, 2:34] | _bits(high, (0, 3, 6, 9), 7) << 8 | np.repeat(high >> 15, 4, axis=1) << 11
    factor = 2 * (high >> 12 & 7) + 1
    return _ternary()[places], _f16(b[:, :2]) * factor.astype(np.float32) / np.float32(8)


def _iq1_m(b: U8) -> tuple[U64, F32]:
    words = _u16(b[:, 48:56])
    d = np.bitwise_or.reduce((words & 0xF000) >> np.array([12, 8, 4, 0], np.uint16), axis=1, keepdims=True)
    d16: F32 = d.astype(np.uint16).view(np.float16).astype(np.float32)
    high = _bits(b[:, 32:48], (0, 4), 15).astype(np.uint16)
    factor = 2 * _bits(words, (0, 3, 6, 9), 7) + 1
    scale: F32 = d16 * factor.astype(np.float32) / np.float32(8)
    return _ternary()[b[:, :32] | high << 8], scale


# By names: an older gguf knows fewer types.
_SPLIT: Mapping[str, Callable[[U8], tuple[U64, F32]]] = MappingProxyType(
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
INTEGERS = frozenset(Q[name] for name in _SPLIT if name in Q.__members__)


def integers(rows: U8, qtype: Q) -> tuple[NDArray[np.uint32], F32]:
    """Pure. rows [n, bytes per row] u8 -> step words [n, n_in / 4] of integers + 128, scales [n, n_scales] f32."""
    words, scale = _SPLIT[qtype.name](rows.reshape(-1, GGML_QUANT_SIZES[qtype][1]))
    return words.view(np.uint32).reshape(len(rows), -1), scale.reshape(len(rows), -1)
