"""GGUF's blocks taken apart into the parts a panel is made of, type by type, in whole arrays of 32-bit words.

Enters: rows as stored, [n, bytes per row] u8, n a multiple of 16. Leaves: `Parts`: code words in the panel's order,
scales and minima. What differs inside a block (group, step) comes first, `at` = [n_panels, n_blocks, 16 columns] last,
so that every operation runs over long stretches of memory. A "step word" is 4 inputs' codes of one column, one per
byte. The bit layouts are those of ggml's block structures (ggml-common.h); what they mean is defined, for the tests
too, by `gguf.quants`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType as Q
from numpy.typing import NDArray

from polyseq.backends.cpu.panels.iq_blocks import INTEGERS, integers
from polyseq.backends.cpu.panels.panel_kind import N_COLUMNS, STEPS, SUPER

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
Fields = Mapping[str, NDArray[Any]]  # a field of several items [n_items, *at], a single one [*at]

_LOW4, _HIGH4, _LOW2, _LOW1, _SIGNS = (
    np.uint32(mask) for mask in (0x0F0F0F0F, 0xF0F0F0F0, 0x03030303, 0x01010101, 0x80808080)
)
_FOUR = np.uint32(4)
# A nibble times this has its bit k at bit 8k, one input per byte; nothing else falls on those bits.
_SPREAD = np.uint32(1 | 1 << 7 | 1 << 14 | 1 << 21)


@dataclass(frozen=True, slots=True)
class Parts:
    """Some panels in parts; a block is 1, 2 or 8 groups."""

    words: U32  # [groups of a block, bits, *at] code words, plane after plane
    scale: NDArray[Any]  # [groups of a block, n_scales, *at] f16, f32, u8 or i8
    minimum: NDArray[Any] | None = None  # [groups of a block, n_scales, *at] f16 or u8
    d: NDArray[Any] | None = None  # [*at] f16
    dmin: NDArray[Any] | None = None  # [*at] f16


# --- planes of step words [groups, 8, *at]


def plane4(steps: U32) -> U32:
    """Pure. 4-bit codes: step i below, step i + 4 above -> [groups, 4, *at]."""
    out = steps[:, 4:] << _FOUR
    out |= steps[:, :4]
    return out


def plane2(steps: U32) -> U32:
    """Pure. 2-bit codes: steps 4i .. 4i + 3 at bits 0, 2, 4, 6 -> [groups, 2, *at]."""
    return _stacked(steps, 4, 2)


def plane1(steps: U32) -> U32:
    """Pure. 1-bit codes: step i at bit i -> [groups, 1, *at]."""
    return _stacked(steps, 8, 1)


def _stacked(steps: U32, n: int, bits: int) -> U32:
    """Pure. Each n steps, of so many bits, one above the other in one word -> [groups, 8 / n, *at]."""
    out = steps[:, 0::n].copy()
    shifted = np.empty_like(out)
    for i in range(1, n):
        out |= np.left_shift(steps[:, i::n], np.uint32(bits * i), out=shifted)
    return out


def _taken_apart(words: U32, bits: int, mask: np.uint32) -> U32:
    """Pure. Words [m, *at] that hold 8 / bits codes one above the other -> [8 / bits, m, *at]."""
    out = np.empty((8 // bits, *words.shape), np.uint32)
    for i, layer in enumerate(out):
        np.right_shift(words, np.uint32(bits * i), out=layer)
        layer &= mask
    return out


# --- types with one block per group


def _q4_0(b: Fields) -> Parts:
    return Parts(b["q"][None], b["d"][None])


def _q4_1(b: Fields) -> Parts:
    return Parts(b["q"][None], b["d"][None], b["m"][None])


def _with_fifth_bit(b: Fields) -> U32:
    """Pure. Q5_0 and Q5_1: bit i of "h" is the highest bit of input i."""
    words = np.empty((1, 5, *b["q"].shape[1:]), np.uint32)
    words[0, :4], words[0, 4] = b["q"], 0
    for i in range(STEPS):
        words[0, 4] |= ((b["h"][0] >> np.uint32(4 * i) & np.uint32(15)) * _SPREAD & _LOW1) << np.uint32(i)
    return words


def _q5_0(b: Fields) -> Parts:
    return Parts(_with_fifth_bit(b), b["d"][None])


def _q5_1(b: Fields) -> Parts:
    return Parts(_with_fifth_bit(b), b["d"][None], b["m"][None])


def _q8_0(b: Fields) -> Parts:
    return Parts((b["q"] ^ _SIGNS)[None], b["d"][None])


def _mxfp4(b: Fields) -> Parts:
    # A power of two, halved: the table holds twice the values. Below 2 it is no normal float32.
    exponent = b["e"].astype(np.uint32)
    bits = np.where(exponent < 2, np.uint32(0x200000) << exponent, (exponent - np.uint32(1)) << np.uint32(23))
    return Parts(b["q"][None], bits.view(np.float32)[None])


# --- K-quants and other blocks of 8 groups


def _twos(words: U32) -> U32:
    """Pure. 16 words of 2-bit codes, each 8 holding 4 groups one above the other -> steps [8, 8, *at]."""
    return np.concatenate([_taken_apart(words[i : i + 8], 2, _LOW2) for i in (0, 8)])


def _ones(words: U32) -> U32:
    """Pure. 8 words of single bits, group g at bit g -> steps [8, 8, *at]."""
    return _taken_apart(words, 1, _LOW1)


def _k_scales(s: U8) -> tuple[U8, U8]:
    """Pure. Q4_K, Q5_K: 12 bytes -> 8 scales and 8 minima of 6 bits, one per group."""
    a, b, c = s[0:4], s[4:8], s[8:12]
    scale = np.concatenate((a & 63, c & 15 | a >> 2 & 48))
    minimum = np.concatenate((b & 63, c >> 4 | b >> 2 & 48))
    return scale[:, None], minimum[:, None]


def _k_plane4(words: U32) -> U32:
    """Pure. Q4_K, Q5_K: each 8 words hold group 2i in the low halves of their bytes, 2i + 1 in the high ones."""
    q = words.reshape(SUPER // 2, 2, 4, *words.shape[1:])
    out = np.empty_like(q)
    first, last = q[:, 0], q[:, 1]
    out[:, 0] = first & _LOW4 | (last & _LOW4) << _FOUR
    out[:, 1] = first >> _FOUR & _LOW4 | last & _HIGH4
    return out.reshape(SUPER, 4, *words.shape[1:])


def _by_16(x: NDArray[Any]) -> NDArray[Any]:
    """Pure. [16, *at] -> [8 groups, 2 halves, *at]."""
    return x.reshape(SUPER, 2, *x.shape[1:])


def _q2_k(b: Fields) -> Parts:
    return Parts(plane2(_twos(b["q"])), _by_16(b["s"] & 15), _by_16(b["s"] >> 4), b["d"], b["dmin"])


def _q3_k(b: Fields) -> Parts:
    low, high = b["s"][:8], b["s"][8:]
    s = np.concatenate((low & 15, low >> 4))
    s |= np.concatenate([(high >> i & 3) << 4 for i in (0, 2, 4, 6)])
    words = np.concatenate((plane2(_twos(b["q"])), plane1(_ones(b["h"]))), axis=1)
    return Parts(words, _by_16(s.view(np.int8) - np.int8(32)), None, b["d"])


def _q4_k(b: Fields) -> Parts:
    return Parts(_k_plane4(b["q"]), *_k_scales(b["s"]), b["d"], b["dmin"])


def _q5_k(b: Fields) -> Parts:
    words = np.concatenate((_k_plane4(b["q"]), plane1(_ones(b["h"]))), axis=1)
    return Parts(words, *_k_scales(b["s"]), b["d"], b["dmin"])


def _q6_k(b: Fields) -> Parts:
    # Each half of a block has 16 words of low bits: groups 0 and 1 in the low halves of bytes, 2 and 3 in the high.
    low = np.concatenate([_taken_apart(b["q"][i : i + 16], 4, _LOW4) for i in (0, 16)])
    low = low.reshape(SUPER, STEPS, *low.shape[2:])
    words = np.concatenate((plane4(low), plane2(_twos(b["h"]))), axis=1)
    return Parts(words, _by_16(b["s"]), None, b["d"])


def _iq4_xs(b: Fields) -> Parts:
    low = np.stack((b["l"] & 15, b["l"] >> 4), axis=1).reshape(SUPER, *b["d"].shape)
    high = np.stack([b["h"] >> np.uint16(2 * i) & np.uint16(3) for i in range(SUPER)]).astype(np.uint8)
    scale = (low | high << 4).view(np.int8) - np.int8(32)
    return Parts(b["q"].reshape(SUPER, 4, *b["d"].shape), scale[:, None], None, b["d"])


def _repeated(d: NDArray[Any]) -> NDArray[Any]:
    """Pure. One scale [*at] for all 8 groups."""
    return np.broadcast_to(d, (SUPER, 1, *d.shape))


def _tq2_0(b: Fields) -> Parts:
    return Parts(plane2(_twos(b["q"])), _repeated(b["d"]))


def _tq1_0(b: Fields) -> Parts:
    # A byte holds 5 codes (the last four: 4) as a fraction in base 3: times 3^i, the next digit is what overflows.
    codes = np.concatenate([b[name] * np.uint8(3**i) for name, n in (("q", 5), ("q2", 5), ("h", 4)) for i in range(n)])
    codes = (codes.astype(np.uint16) * np.uint16(3) >> 8).astype(np.uint32)
    steps = codes[0::4] | codes[1::4] << np.uint32(8) | codes[2::4] << np.uint32(16) | codes[3::4] << np.uint32(24)
    return Parts(plane2(steps.reshape(SUPER, STEPS, *b["d"].shape)), _repeated(b["d"]))


def _nvfp4(b: Fields) -> Parts:
    # A block is two groups; each 16 inputs have 8 bytes, the first half below, the last above, and a scale of
    # 4 bits of exponent and 3 of mantissa, halved like MXFP4's: 0 and 127 (NaN) stand for zero.
    at = b["q"].shape[1:]
    q = b["q"].reshape(2, 2, 1, 2, *at)
    steps = np.concatenate((q & _LOW4, q >> _FOUR & _LOW4), axis=2).reshape(2, STEPS, *at)
    x = b["s"].astype(np.int32)
    exponent, mantissa = x >> 3 & 15, (x & 7).astype(np.float32)
    small = mantissa * np.float32(2.0**-9)
    large = (1 + mantissa / np.float32(8)) * np.exp2(exponent - 7).astype(np.float32)
    value = np.where(exponent == 0, small, large) * np.float32(0.5)
    scale = np.where((x == 0) | (x == 0x7F), np.float32(0), value).astype(np.float32)
    return Parts(plane4(steps), scale.reshape(2, 2, *at))


# The fields of a block in order: name, type, items (0: a single one, without an axis of its own).
_F16, _U16, _U32 = "<f2", "<u2", "<u4"
_SPLIT: Mapping[str, tuple[tuple[tuple[str, str, int], ...], Callable[[Fields], Parts]]] = MappingProxyType(
    {
        "Q4_0": ((("d", _F16, 1), ("q", _U32, 4)), _q4_0),
        "Q4_1": ((("d", _F16, 1), ("m", _F16, 1), ("q", _U32, 4)), _q4_1),
        "Q5_0": ((("d", _F16, 1), ("h", _U32, 1), ("q", _U32, 4)), _q5_0),
        "Q5_1": ((("d", _F16, 1), ("m", _F16, 1), ("h", _U32, 1), ("q", _U32, 4)), _q5_1),
        "Q8_0": ((("d", _F16, 1), ("q", _U32, 8)), _q8_0),
        "IQ4_NL": ((("d", _F16, 1), ("q", _U32, 4)), _q4_0),
        "MXFP4": ((("e", "u1", 1), ("q", _U32, 4)), _mxfp4),
        "Q2_K": ((("s", "u1", 16), ("q", _U32, 16), ("d", _F16, 0), ("dmin", _F16, 0)), _q2_k),
        "Q3_K": ((("h", _U32, 8), ("q", _U32, 16), ("s", "u1", 12), ("d", _F16, 0)), _q3_k),
        "Q4_K": ((("d", _F16, 0), ("dmin", _F16, 0), ("s", "u1", 12), ("q", _U32, 32)), _q4_k),
        "Q5_K": ((("d", _F16, 0), ("dmin", _F16, 0), ("s", "u1", 12), ("h", _U32, 8), ("q", _U32, 32)), _q5_k),
        "Q6_K": ((("q", _U32, 32), ("h", _U32, 16), ("s", "i1", 16), ("d", _F16, 0)), _q6_k),
        "IQ4_XS": ((("d", _F16, 0), ("h", _U16, 0), ("l", "u1", 4), ("q", _U32, 32)), _iq4_xs),
        "NVFP4": ((("s", "u1", 4), ("q", _U32, 8)), _nvfp4),
        "TQ1_0": ((("q", "u1", 32), ("q2", "u1", 16), ("h", "u1", 4), ("d", _F16, 0)), _tq1_0),
        "TQ2_0": ((("q", _U32, 16), ("d", _F16, 0)), _tq2_0),
    }
)


def parts(rows: U8, qtype: Q) -> Parts:
    """Pure. rows [n, bytes per row] u8 -> their parts. Raises KeyError for a type without integer codes."""
    n_panels = len(rows) // N_COLUMNS
    if qtype in INTEGERS:
        steps, scale = integers(rows, qtype)
        return Parts(
            _columns_last(steps.reshape(n_panels, N_COLUMNS, -1, STEPS))[None], _by_group(scale, n_panels, steps)
        )
    fields, split = _SPLIT[qtype.name]
    # Fields are taken out as plain bytes first: NumPy copies those in one piece, and numbers only where aligned.
    opaque = np.dtype([(name, f"V{np.dtype(kind).itemsize * max(n, 1)}") for name, kind, n in fields])
    blocks = rows.reshape(n_panels, N_COLUMNS, -1).view(opaque)

    def field(name: str, kind: str, n: int) -> NDArray[Any]:
        items = np.ascontiguousarray(blocks[name]).view(kind).reshape(*blocks.shape, max(n, 1))
        last = _columns_last(items)
        return last if n else last[0]

    return split({name: field(name, kind, n) for name, kind, n in fields})


def _columns_last(items: NDArray[Any]) -> NDArray[Any]:
    """Pure. [n_panels, 16, n_blocks, n] -> [n, n_panels, n_blocks, 16]."""
    return np.ascontiguousarray(items.transpose(3, 0, 2, 1))


def _by_group(scale: NDArray[np.float32], n_panels: int, steps: U32) -> NDArray[np.float32]:
    """Pure. Scales [n, n_scales of a row] -> [1, scales of a group, *at]."""
    return _columns_last(scale.reshape(n_panels, N_COLUMNS, steps.shape[1] // STEPS, -1))[None]
