"""GGUF's blocks taken apart into the parts a panel is made of, type by type, in whole arrays of 32-bit words.

Enters: rows as stored, [n, bytes per row] u8, n a multiple of 16. Leaves: `Parts`. A "step word" is 4 inputs' codes of
one column, one per byte. Types that take too long this way are packed by kernels (compiled_blocks.py). The bit layouts
are those of ggml's block structures (ggml-common.h); what they mean is defined, for the tests too, by `gguf.quants`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType as Q
from numpy.typing import NDArray

from polyseq.backends.cpu.panels.bit_planes import exchange, fifth_bits, transpose
from polyseq.backends.cpu.panels.panel_kind import N_COLUMNS, SUPER
from polyseq.backends.cpu.panels.parts import U32, Fields, Parts, items_first
from polyseq.backends.cpu.panels.scratch import Scratch

U8 = NDArray[np.uint8]

_SIGNS = np.uint32(0x80808080)

# --- types with one block per group


def _q4_0(b: Fields, room: Scratch) -> Parts:
    return Parts((items_first(b["q"])[None],), b["d"][None, None])


def _q4_1(b: Fields, room: Scratch) -> Parts:
    return Parts((items_first(b["q"])[None],), b["d"][None, None], b["m"][None, None])


def _q5_0(b: Fields, room: Scratch) -> Parts:
    return Parts((items_first(b["q"])[None], fifth_bits(b["h"], room)[None, None]), b["d"][None, None])


def _q5_1(b: Fields, room: Scratch) -> Parts:
    planes = items_first(b["q"])[None], fifth_bits(b["h"], room)[None, None]
    return Parts(planes, b["d"][None, None], b["m"][None, None])


def _q8_0(b: Fields, room: Scratch) -> Parts:
    b["q"] ^= _SIGNS
    return Parts((items_first(b["q"])[None],), b["d"][None, None])


@cache
def _powers_of_two() -> NDArray[np.float32]:
    """Pure. MXFP4's scales [256]: halved, since the table of codes holds twice the values."""
    exponent = np.arange(256, dtype=np.uint32)  # below 2 it is no normal float32
    bits = np.where(exponent < 2, np.uint32(0x200000) << exponent, (exponent - np.uint32(1)) << np.uint32(23))
    return bits.view(np.float32)


def _mxfp4(b: Fields, room: Scratch) -> Parts:
    return Parts((items_first(b["q"])[None],), room.taken(_powers_of_two(), b["e"])[None, None])


# --- K-quants and other blocks of 8 groups


def _twos(words: U32, room: Scratch) -> U32:
    """Pure. [*at, 16] words of 2-bit codes, each 8 holding 4 groups one above the other -> plane [8, 2, *at]."""
    at = words.shape[:2]
    # [half, vector, step of 4] -> [half, step of 4, vector], and so [half, group, vector]
    out = room.copy(words.reshape(*at, 2, 2, 4).transpose(2, 4, 3, 0, 1))
    transpose(out.swapaxes(0, 1), 2, room)
    return out.reshape(SUPER, 2, *at)


def _ones(words: U32, room: Scratch) -> U32:
    """Pure. [*at, 8] words of single bits, group g at bit g -> plane [8, 1, *at]."""
    out = room.copy(items_first(words))
    transpose(out, 1, room)
    return out[:, None]


def _fours(words: U32, room: Scratch, *, n_between: int = 1) -> U32:
    """Pure. [*at, 32] words of 4-bit codes -> plane [8, 4, *at].

    Each 8 words hold two groups, one in the low halves of bytes and one, so many groups on, in the high halves.
    """
    at = words.shape[:2]
    # [pairs of groups, between, step >= 4, step of 4] -> [pairs of groups, step >= 4, between, step of 4]
    stored = words.reshape(*at, -1, n_between, 2, 4)
    out = room.copy(stored.transpose(2, 4, 3, 5, 0, 1))
    exchange(out[:, 0], out[:, 1], 4, room)
    return out.reshape(SUPER, 4, *at)


def _k_scales(stored: U8, room: Scratch) -> tuple[U8, U8]:
    """Pure. Q4_K, Q5_K: [*at, 12] bytes -> 8 scales and 8 minima of 6 bits, one per group."""
    s = room.copy(items_first(stored))
    a, b, c = s[0:4], s[4:8], s[8:12]
    scale = np.concatenate((a & 63, c & 15 | a >> 2 & 48))
    minimum = np.concatenate((b & 63, c >> 4 | b >> 2 & 48))
    return scale[:, None], minimum[:, None]


def _by_16(x: NDArray[Any], room: Scratch) -> NDArray[Any]:
    """Pure. [*at, 16] -> [8 groups, 2 halves, *at]."""
    return room.copy(items_first(x)).reshape(SUPER, 2, *x.shape[:2])


def _q2_k(b: Fields, room: Scratch) -> Parts:
    s = _by_16(b["s"], room)
    return Parts((_twos(b["q"], room),), s & 15, s >> 4, b["d"], b["dmin"])


def _q3_k(b: Fields, room: Scratch) -> Parts:
    stored = np.ascontiguousarray(items_first(b["s"]))
    low, high = stored[:8], stored[8:]
    s = np.concatenate((low & 15, low >> 4))
    s |= np.concatenate([(high >> i & 3) << 4 for i in (0, 2, 4, 6)])
    s -= np.uint8(32)
    scale = s.view(np.int8).reshape(SUPER, 2, *s.shape[1:])
    return Parts((_twos(b["q"], room), _ones(b["h"], room)), scale, None, b["d"])


def _q4_k(b: Fields, room: Scratch) -> Parts:
    return Parts((_fours(b["q"], room),), *_k_scales(b["s"], room), b["d"], b["dmin"])


def _q5_k(b: Fields, room: Scratch) -> Parts:
    return Parts((_fours(b["q"], room), _ones(b["h"], room)), *_k_scales(b["s"], room), b["d"], b["dmin"])


def _q6_k(b: Fields, room: Scratch) -> Parts:
    return Parts((_fours(b["q"], room, n_between=2), _twos(b["h"], room)), _by_16(b["s"], room), None, b["d"])


def _iq4_xs(b: Fields, room: Scratch) -> Parts:
    at = b["d"].shape
    low = np.ascontiguousarray(items_first(b["l"]))
    scale = np.stack((low & 15, low >> 4), axis=1).reshape(SUPER, *at)
    for i, one in enumerate(scale):
        one |= (b["h"] >> np.uint16(2 * i)).astype(np.uint8) << 4 & 48
    scale -= np.uint8(32)
    return Parts((items_first(b["q"]).reshape(SUPER, 4, *at),), scale.view(np.int8)[:, None], None, b["d"])


def _tq2_0(b: Fields, room: Scratch) -> Parts:
    return Parts((_twos(b["q"], room),), b["d"][None, None])


@cache
def _small_floats() -> NDArray[np.float32]:
    """Pure. NVFP4's scales [256]: 4 bits of exponent, 3 of mantissa, halved; 0 and 127 (NaN) stand for zero."""
    x = np.arange(256)
    exponent, mantissa = x >> 3 & 15, (x & 7).astype(np.float32)
    small = mantissa * np.float32(2.0**-9)
    large = (1 + mantissa / np.float32(8)) * np.exp2(exponent - 7).astype(np.float32)
    value = np.where(exponent == 0, small, large) * np.float32(0.5)
    return np.where((x == 0) | (x == 0x7F), np.float32(0), value).astype(np.float32)


def _nvfp4(b: Fields, room: Scratch) -> Parts:
    # A block is two groups; each 16 inputs have 8 bytes, the first half below, the last above, and a scale.
    at = b["q"].shape[:2]
    out = room.copy(b["q"].reshape(*at, 2, 2, 2).transpose(2, 3, 4, 0, 1))  # [groups, half, step of 2]
    exchange(out[:, 0], out[:, 1], 4, room)
    scale = items_first(room.taken(_small_floats(), b["s"]))
    return Parts((out.reshape(2, 4, *at),), scale.reshape(2, 2, *at))


# The fields of a block in order: name, type, items (0: a single one, without an axis of its own).
_F16, _U16, _U32 = "<f2", "<u2", "<u4"
_SPLIT: Mapping[str, tuple[tuple[tuple[str, str, int], ...], Callable[[Fields, Scratch], Parts]]] = MappingProxyType(
    {
        "Q4_0": ((("d", _F16, 0), ("q", _U32, 4)), _q4_0),
        "Q4_1": ((("d", _F16, 0), ("m", _F16, 0), ("q", _U32, 4)), _q4_1),
        "Q5_0": ((("d", _F16, 0), ("h", _U32, 0), ("q", _U32, 4)), _q5_0),
        "Q5_1": ((("d", _F16, 0), ("m", _F16, 0), ("h", _U32, 0), ("q", _U32, 4)), _q5_1),
        "Q8_0": ((("d", _F16, 0), ("q", _U32, 8)), _q8_0),
        "IQ4_NL": ((("d", _F16, 0), ("q", _U32, 4)), _q4_0),
        "MXFP4": ((("e", "u1", 0), ("q", _U32, 4)), _mxfp4),
        "Q2_K": ((("s", "u1", 16), ("q", _U32, 16), ("d", _F16, 0), ("dmin", _F16, 0)), _q2_k),
        "Q3_K": ((("h", _U32, 8), ("q", _U32, 16), ("s", "u1", 12), ("d", _F16, 0)), _q3_k),
        "Q4_K": ((("d", _F16, 0), ("dmin", _F16, 0), ("s", "u1", 12), ("q", _U32, 32)), _q4_k),
        "Q5_K": ((("d", _F16, 0), ("dmin", _F16, 0), ("s", "u1", 12), ("h", _U32, 8), ("q", _U32, 32)), _q5_k),
        "Q6_K": ((("q", _U32, 32), ("h", _U32, 16), ("s", "i1", 16), ("d", _F16, 0)), _q6_k),
        "IQ4_XS": ((("d", _F16, 0), ("h", _U16, 0), ("l", "u1", 4), ("q", _U32, 32)), _iq4_xs),
        "NVFP4": ((("s", "u1", 4), ("q", _U32, 8)), _nvfp4),
        "TQ2_0": ((("q", _U32, 16), ("d", _F16, 0)), _tq2_0),
    }
)


@cache
def _stored_dtype(name: str) -> np.dtype[np.void]:
    """Pure. A block; fields of several items as plain bytes, which NumPy copies in one piece."""
    fields, _ = _SPLIT[name]
    return np.dtype([(name, f"V{np.dtype(kind).itemsize * n}" if n else kind) for name, kind, n in fields])


def parts(rows: U8, qtype: Q, room: Scratch) -> Parts:
    """Pure. rows [n, bytes per row] u8 -> their parts. Raises KeyError for a type that is not taken apart here."""
    fields, split = _SPLIT[qtype.name]
    blocks = rows.reshape(len(rows) // N_COLUMNS, N_COLUMNS, -1).view(_stored_dtype(qtype.name)).transpose(0, 2, 1)

    def field(name: str, kind: str, n: int) -> NDArray[Any]:
        items = room.copy(blocks[name]).view(kind)
        return items.reshape(-1, N_COLUMNS, n) if n else items.reshape(-1, N_COLUMNS)

    return split({name: field(name, kind, n) for name, kind, n in fields}, room)
