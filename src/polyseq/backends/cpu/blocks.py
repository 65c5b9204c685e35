"""GGUF's blocks taken apart into the parts a panel is made of, type by type, in whole arrays of 32-bit words.

Enters: rows as stored, [n, bytes per row] u8, n a multiple of 16. Leaves: `Parts`: code words in the panel's order,
scales and minima. Columns come last from the first step on, `[n_panels, ..., 16]`, so that everything after it works on
neighbours. A "step word" is 4 inputs' codes of one column, one per byte; `[..., 8, 16]` of them are a group. The bit
layouts are those of ggml's block structures (ggml-common.h); what they mean is defined, for the tests too, by
`gguf.quants`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType as Q
from numpy.typing import NDArray

from polyseq.backends.cpu.iq_blocks import INTEGERS, scales_of
from polyseq.backends.cpu.panel_kind import GROUP, N_COLUMNS, STEPS, SUPER

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
Fields = Mapping[str, NDArray[Any]]  # of blocks [n_panels, n_blocks, 16], a field of several items before the columns

_LOW4, _HIGH4, _LOW2, _LOW1, _SIGNS = (
    np.uint32(mask) for mask in (0x0F0F0F0F, 0xF0F0F0F0, 0x03030303, 0x01010101, 0x80808080)
)
_FOUR = np.uint32(4)
# Bit k of a nibble moved to bit 8k: one input per byte.
_SPREAD = np.array([sum((n >> k & 1) << 8 * k for k in range(4)) for n in range(16)], np.uint32)


@dataclass(frozen=True, slots=True)
class Parts:
    """Some panels in parts."""

    words: U32  # [n_panels, n_groups, bits, 16] code words, plane after plane
    scale: NDArray[Any]  # [n_panels, n_groups, n_scales, 16] f16, f32, u8 or i8
    minimum: NDArray[Any] | None = None  # [n_panels, n_groups, n_scales, 16] f16 or u8
    d: NDArray[Any] | None = None  # [n_panels, n_super, 16] f16
    dmin: NDArray[Any] | None = None  # [n_panels, n_super, 16] f16


# --- planes of step words [..., 8, 16], and back


def plane4(steps: U32) -> U32:
    """Pure. 4-bit codes: step i below, step i + 4 above -> [..., 4, 16]."""
    out = steps[..., 4:, :] << _FOUR
    out |= steps[..., :4, :]
    return out


def plane2(steps: U32) -> U32:
    """Pure. 2-bit codes: steps 4i .. 4i + 3 at bits 0, 2, 4, 6 -> [..., 2, 16]."""
    out = steps[..., 0::4, :].copy()
    for i in (1, 2, 3):
        out |= steps[..., i::4, :] << np.uint32(2 * i)
    return out


def plane1(steps: U32) -> U32:
    """Pure. 1-bit codes: step i at bit i -> [..., 1, 16]."""
    out = steps[..., :1, :].copy()
    for i in range(1, STEPS):
        out |= steps[..., i : i + 1, :] << np.uint32(i)
    return out


def _steps_of(words: U32, bits: int) -> U32:
    """Pure. Code words [..., bits, 16] -> step words [..., 8, 16]: the inverse of the planes."""
    if bits == 8:
        return words
    if bits == 4:
        return np.concatenate((words & _LOW4, words >> _FOUR & _LOW4), axis=-2)
    if bits == 2:
        return np.concatenate([words[..., i // 4, None, :] >> np.uint32(i % 4 * 2) & _LOW2 for i in range(8)], axis=-2)
    if bits == 1:
        return np.concatenate([words >> np.uint32(i) & _LOW1 for i in range(8)], axis=-2)
    low = 2 if bits == 3 else 4
    return _steps_of(words[..., :low, :], low) | _steps_of(words[..., low:, :], bits - low) << np.uint32(low)


def codes_of(words: U32, bits: int) -> U8:
    """Pure. Code words [n_panels, n_groups, bits, 16] -> codes [n_panels * 16, n_groups, 32] u8."""
    steps = _steps_of(words, bits).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(steps).view(np.uint8).reshape(-1, words.shape[1], GROUP)


# --- types with one block per group


def _q4_0(b: Fields) -> Parts:
    return Parts(b["q"], b["d"])


def _q4_1(b: Fields) -> Parts:
    return Parts(b["q"], b["d"], b["m"])


def _with_fifth_bit(b: Fields) -> U32:
    """Pure. Q5_0 and Q5_1: bit i of "h" is the highest bit of input i."""
    high = np.zeros_like(b["h"])
    for i in range(STEPS):
        high |= _SPREAD[b["h"] >> np.uint32(4 * i) & np.uint32(15)] << np.uint32(i)
    return np.concatenate((b["q"], high), axis=-2)


def _q5_0(b: Fields) -> Parts:
    return Parts(_with_fifth_bit(b), b["d"])


def _q5_1(b: Fields) -> Parts:
    return Parts(_with_fifth_bit(b), b["d"], b["m"])


def _q8_0(b: Fields) -> Parts:
    return Parts(b["q"] ^ _SIGNS, b["d"])


def _mxfp4(b: Fields) -> Parts:
    # A power of two, halved: the table holds twice the values. Below 2 it is no normal float32.
    exponent = b["e"].astype(np.uint32)
    bits = np.where(exponent < 2, np.uint32(0x200000) << exponent, (exponent - np.uint32(1)) << np.uint32(23))
    return Parts(b["q"], bits.view(np.float32))


# --- K-quants and other blocks of 8 groups: arrays are [n_panels, n_super, ..., 16]


def _groups(x: NDArray[Any], n: int) -> NDArray[Any]:
    """Pure. [n_panels, n_super, 8 * n items in some shape, 16] -> [n_panels, n_groups, n, 16]."""
    return x.reshape(len(x), -1, n, N_COLUMNS)


def _twos(words: U32) -> U32:
    """Pure. 16 words of 2-bit codes, each 8 holding 4 groups one above the other -> steps [..., 8, 8, 16]."""
    halves = words.reshape(*words.shape[:2], 2, STEPS, N_COLUMNS)
    return np.stack([halves >> np.uint32(i) & _LOW2 for i in (0, 2, 4, 6)], axis=3).reshape(
        *words.shape[:2], SUPER, STEPS, N_COLUMNS
    )


def _ones(words: U32) -> U32:
    """Pure. 8 words of single bits, group g at bit g -> steps [..., 8, 8, 16]."""
    return np.stack([words >> np.uint32(i) & _LOW1 for i in range(SUPER)], axis=2)


def _k_scales(s: U8) -> tuple[NDArray[Any], NDArray[Any]]:
    """Pure. Q4_K, Q5_K: 12 bytes -> 8 scales and 8 minima of 6 bits, one per group."""
    a, b, c = s[:, :, 0:4], s[:, :, 4:8], s[:, :, 8:12]
    scale = np.concatenate((a & 63, c & 15 | a >> 2 & 48), axis=2)
    minimum = np.concatenate((b & 63, c >> 4 | b >> 2 & 48), axis=2)
    return _groups(scale, 1), _groups(minimum, 1)


def _k_plane4(words: U32) -> U32:
    """Pure. Q4_K, Q5_K: each 8 words hold group 2i in the low halves of their bytes, 2i + 1 in the high ones."""
    q = words.reshape(*words.shape[:2], SUPER // 2, 2, 4, N_COLUMNS)
    out = np.empty((*words.shape[:2], SUPER // 2, 2, 4, N_COLUMNS), np.uint32)
    first, last = q[:, :, :, 0], q[:, :, :, 1]
    out[:, :, :, 0] = first & _LOW4 | (last & _LOW4) << _FOUR
    out[:, :, :, 1] = first >> _FOUR & _LOW4 | last & _HIGH4
    return out.reshape(len(words), -1, 4, N_COLUMNS)


def _q2_k(b: Fields) -> Parts:
    return Parts(_groups(plane2(_twos(b["q"])), 2), _groups(b["s"] & 15, 2), _groups(b["s"] >> 4, 2), b["d"], b["dmin"])


def _q3_k(b: Fields) -> Parts:
    low, high = b["s"][:, :, :8], b["s"][:, :, 8:]
    s = np.concatenate((low & 15, low >> 4), axis=2)
    s |= np.concatenate([(high >> i & 3) << 4 for i in (0, 2, 4, 6)], axis=2)
    words = np.concatenate((plane2(_twos(b["q"])), plane1(_ones(b["h"]))), axis=-2)
    return Parts(_groups(words, 3), _groups(s.view(np.int8) - np.int8(32), 2), None, b["d"])


def _q4_k(b: Fields) -> Parts:
    return Parts(_k_plane4(b["q"]), *_k_scales(b["s"]), b["d"], b["dmin"])


def _q5_k(b: Fields) -> Parts:
    words = np.concatenate((_k_plane4(b["q"]), _groups(plane1(_ones(b["h"])), 1)), axis=-2)
    return Parts(words, *_k_scales(b["s"]), b["d"], b["dmin"])


def _q6_k(b: Fields) -> Parts:
    # Each half of a block has 16 words of low bits: groups 0 and 1 in the low halves of bytes, 2 and 3 in the high.
    low = b["q"].reshape(*b["q"].shape[:2], 2, 1, 2, STEPS, N_COLUMNS)
    low = np.concatenate((low & _LOW4, low >> _FOUR & _LOW4), axis=3)
    low = low.reshape(*b["q"].shape[:2], SUPER, STEPS, N_COLUMNS)
    words = np.concatenate((plane4(low), plane2(_twos(b["h"]))), axis=-2)
    return Parts(_groups(words, 6), _groups(b["s"], 2), None, b["d"])


def _iq4_xs(b: Fields) -> Parts:
    low, high = b["l"], b["h"][:, :, None] >> np.arange(0, 16, 2, dtype=np.uint16)[:, None] & 3
    low = np.stack((low & 15, low >> 4), axis=3).reshape(*low.shape[:2], SUPER, N_COLUMNS)
    scale = (low | high.astype(np.uint8) << 4).view(np.int8) - np.int8(32)
    return Parts(_groups(b["q"], 4), _groups(scale, 1), None, b["d"])


def _repeated(d: NDArray[Any]) -> NDArray[Any]:
    """Pure. One scale per block [n_panels, n_super, 16] for its 8 groups."""
    return np.repeat(d, SUPER, axis=1)[:, :, None]


def _tq2_0(b: Fields) -> Parts:
    return Parts(_groups(plane2(_twos(b["q"])), 2), _repeated(b["d"]))


def _tq1_0(b: Fields) -> Parts:
    # A byte holds 5 codes (the last four: 4) as a fraction in base 3: times 3^i, the next digit is what overflows.
    digits = [
        np.stack([b[name] * np.uint8(3**i) for i in range(n)], axis=2).reshape(*b[name].shape[:2], -1, N_COLUMNS)
        for name, n in (("q", 5), ("q2", 5), ("h", 4))
    ]
    codes = (np.concatenate(digits, axis=2).astype(np.uint16) * np.uint16(3) >> 8).astype(np.uint8)
    by_column = np.ascontiguousarray(codes.swapaxes(2, 3)).view(np.uint32)  # [n_panels, n_super, 16, 64]
    steps = by_column.swapaxes(2, 3).reshape(*codes.shape[:2], SUPER, STEPS, N_COLUMNS)
    return Parts(_groups(plane2(steps), 2), _repeated(b["d"]))


def _nvfp4(b: Fields) -> Parts:
    # A block is two groups; each 16 inputs have 8 bytes, the first half below, the last above, and a scale of
    # 4 bits of exponent and 3 of mantissa, halved like MXFP4's: 0 and 127 (NaN) stand for zero.
    q = b["q"].reshape(*b["q"].shape[:2], 2, 2, 2, N_COLUMNS)
    steps = np.stack((q & _LOW4, q >> _FOUR & _LOW4), axis=4).reshape(len(q), -1, STEPS, N_COLUMNS)
    x = b["s"].astype(np.int32)
    exponent, mantissa = x >> 3 & 15, (x & 7).astype(np.float32)
    small = mantissa * np.float32(2.0**-9)
    large = (1 + mantissa / np.float32(8)) * np.exp2(exponent - 7).astype(np.float32)
    value = np.where(exponent == 0, small, large) * np.float32(0.5)
    scale = np.where((x == 0) | (x == 0x7F), np.float32(0), value)
    return Parts(plane4(steps), _groups(scale.astype(np.float32), 2))


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
        codes, scale = scales_of(rows, qtype)
        words = (codes.view(np.uint8) ^ 128).view(np.uint32).reshape(n_panels, N_COLUMNS, -1, STEPS)
        scale = scale.reshape(n_panels, N_COLUMNS, words.shape[2], -1)
        return Parts(np.ascontiguousarray(words.transpose(0, 2, 3, 1)), scale.transpose(0, 2, 3, 1))
    fields, split = _SPLIT[qtype.name]
    # Fields are taken out as plain bytes first: NumPy copies those in one piece, and numbers only where aligned.
    opaque = np.dtype([(name, f"V{np.dtype(kind).itemsize * max(n, 1)}") for name, kind, n in fields])
    blocks = rows.reshape(n_panels, N_COLUMNS, -1).view(opaque)
    return split({name: _columns_last(blocks[name], kind, n) for name, kind, n in fields})


def _columns_last(field: NDArray[np.void], kind: str, n: int) -> NDArray[Any]:
    """Pure. Opaque items [n_panels, 16, n_blocks] -> numbers [n_panels, n_blocks(, n), 16]."""
    items = np.ascontiguousarray(field).view(kind).reshape(*field.shape, max(n, 1))
    last = np.ascontiguousarray(items.transpose(0, 2, 3, 1))
    return last if n else last[:, :, 0]
