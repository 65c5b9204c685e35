"""Types whose codes stand for rows of a large table: every weight is a small integer times a scale, and here are both.

Enters: the fields of blocks of 256 inputs. Leaves: `Parts` with the integers as bytes (+ 128, as panels keep 8-bit
codes) and float32 scales per 16 or 32 inputs; their products equal `gguf.quants.dequantize` bit for bit, since every
one fits float32's 24 bits. The tables are gguf's. 8 inputs are looked up at once, as one 64-bit word, and so are their
signs, as a word of bytes 0 and 255. Small tables spread packed bits over the 16-bit places of what is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf import quants
from gguf.constants import GGMLQuantizationType as Q
from numpy.typing import NDArray

from polyseq.backends.cpu.panels.panel_kind import STEPS, SUPER
from polyseq.backends.cpu.panels.parts import Fields, Parts, items_first
from polyseq.backends.cpu.panels.scratch import Scratch

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
U64 = NDArray[np.uint64]
F32 = NDArray[np.float32]

# --- tables


@cache
def _grid(name: str) -> NDArray[np.float32]:
    """Pure. A type's table [n, 4 or 8]."""
    codec: Any = quants._type_traits[Q[name]]
    codec.init_grid()
    return np.asarray(codec.grid, np.float32).reshape(codec.grid_shape)


@cache
def _words(name: str) -> NDArray[np.unsignedinteger]:
    """Pure. The same + 128 as words of 4 or 8 bytes [n]."""
    grid = _grid(name) + 128
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
def _masks_of_14() -> NDArray[np.complex128]:
    """Pure. Two times the same, for signs stored as 7 bits each: the eighth makes their number even."""
    of_7 = _MASKS[np.frombuffer(quants.IQ2_XXS.ksigns, np.uint8)]
    pairs = np.arange(1 << 14)
    return np.stack((of_7[pairs & 127], of_7[pairs >> 7]), axis=1).view(np.complex128).ravel()


@cache
def _signed_words(name: str) -> U64:
    """Pure. A place in the type's table and, above it, 7 bits of signs -> the signed integers + 128."""
    words, of_7 = _words(name), _MASKS[np.frombuffer(quants.IQ2_XXS.ksigns, np.uint8)]
    return _signed(np.tile(words, len(of_7)), np.repeat(of_7, len(words)))


@cache
def _spread(n_bits: int, bits: int, n: int) -> NDArray[np.unsignedinteger]:
    """Pure. Numbers of so many bits -> n of their fields, each the high byte of a 16-bit number, as one word.

    What stands above the fields is repeated above each of them.
    """
    x = np.arange(1 << n_bits, dtype=np.uint16)[:, None]
    fields = x >> (bits * np.arange(n, dtype=np.uint16)) & np.uint16((1 << bits) - 1) | x >> (bits * n) << bits
    return (fields << np.uint16(8)).view(f"u{2 * n}").ravel()


# --- what is looked up


def _signed(words: U64, masks: U64) -> U64:
    """Changes words, whose bytes stand for themselves - 128: negative where a mask byte is 255."""
    words ^= masks
    bytes_ = words.view(np.uint8)
    bytes_ -= masks.view(np.uint8)
    return words


def _by_14(extra: NDArray[np.uint32], room: Scratch) -> U16:
    """Pure. Low 28 bits of [*at, 8] in two pieces -> [*at, 16]."""
    pieces: U16 = room.empty((*extra.shape, 2), np.uint16)
    np.bitwise_and(extra, 0x3FFF, out=pieces[..., 0], casting="unsafe")
    np.right_shift(extra, 14, out=pieces[..., 1], casting="unsafe")
    pieces &= np.uint16(0x3FFF)
    return pieces.reshape(*extra.shape[:2], -1)


def _codes(words: NDArray[Any]) -> tuple[NDArray[np.uint32]]:
    """Pure. Integers + 128, 256 bytes a block -> the one plane of 8-bit codes."""
    at = words.shape[:2]
    return (items_first(words.view(np.uint32).reshape(*at, -1)).reshape(SUPER, STEPS, *at),)


def _halves(b: U8) -> F32:
    """Pure. Bytes [*at, n] -> their low and high halves [n, 2, *at]."""
    first = np.ascontiguousarray(items_first(b))
    out = np.empty((len(first), 2, *first.shape[1:]), np.float32)
    out[:, 0], out[:, 1] = first & 15, first >> 4
    return out


def _times(d: NDArray[np.float16], x: F32) -> F32:
    """Changes x [..., *at]: times d [*at]."""
    x *= d.astype(np.float32)
    return x


def _half_steps(d: NDArray[np.float16], x: F32, unit: float) -> F32:
    """Changes x [..., *at]: d * (x + 1/2) * unit."""
    x += np.float32(0.5)
    x = _times(d, x)
    x *= np.float32(unit)
    return x


# --- types. The order of operations in scales does not matter: each is exact.


def _iq2_xxs(b: Fields, room: Scratch) -> Parts:
    low, extra = (room.copy(b["q"][..., i::2]) for i in range(2))
    places = room.taken(_spread(14, 7, 2), _by_14(extra, room)).view(np.uint16)
    places |= low.view(np.uint8)
    return Parts(_codes(room.taken(_signed_words("IQ2_XXS"), places)), _half_steps(b["d"], _top_4(extra), 0.25))


def _top_4(extra: NDArray[np.uint32]) -> F32:
    """Pure. [*at, 8] -> [8, 1, *at]."""
    return np.ascontiguousarray(items_first(extra >> 28)).astype(np.float32)[:, None]


def _iq2_xs(b: Fields, room: Scratch) -> Parts:
    return Parts(_codes(room.taken(_signed_words("IQ2_XS"), b["q"])), _half_steps(b["d"], _halves(b["s"]), 0.25))


def _iq2_s(b: Fields, room: Scratch) -> Parts:
    places = room.taken(_spread(8, 2, 4), b["h"]).view(np.uint16)
    places |= b["q"]
    words = _signed(room.taken(_words("IQ2_S"), places), room.taken(_MASKS, b["signs"]))
    return Parts(_codes(words), _half_steps(b["d"], _halves(b["s"]), 0.25))


def _iq3_xxs(b: Fields, room: Scratch) -> Parts:
    masks = room.taken(_masks_of_14(), _by_14(b["extra"], room)).view(np.uint64)
    words = _signed(room.taken(_words("IQ3_XXS"), b["q"]).view(np.uint64), masks)
    return Parts(_codes(words), _half_steps(b["d"], _top_4(b["extra"]), 0.5))


def _iq3_s(b: Fields, room: Scratch) -> Parts:
    places = np.unpackbits(b["h"].reshape(-1), bitorder="little").astype(np.uint16).reshape(b["q"].shape)
    places <<= 8
    places |= b["q"]
    words = room.taken(_words("IQ3_S"), places).view(np.uint64)
    words = _signed(words, room.taken(_MASKS, b["signs"]))
    scale = _times(b["d"], 1 + 2 * _halves(b["s"]))
    return Parts(_codes(words), scale.reshape(SUPER, 1, *b["d"].shape))


def _eighths(d: NDArray[np.float16], x: F32) -> F32:
    """Pure. d * (2 x + 1) / 8."""
    return _times(d, 0.25 * x + np.float32(0.125))


def _iq1_s(b: Fields, room: Scratch) -> Parts:
    # 4 times 3 bits of place, 3 of scale, 1 of sign.
    high = b["h"] & 0xFFF
    high |= b["h"] >> 3 & 0x1000
    places = room.taken(_spread(13, 3, 4), high).view(np.uint16)
    places |= b["q"]
    scale = np.ascontiguousarray(items_first(b["h"] >> 12 & 7)).astype(np.float32)
    return Parts(_codes(room.taken(_ternary(), places)), _eighths(b["d"], scale)[:, None])


def _iq1_m(b: Fields, room: Scratch) -> Parts:
    # Halves of bytes: 3 bits of place, 1 of sign. Words of scales: 4 of 3 bits, 4 bits of the block's own.
    places = room.taken(_spread(8, 4, 2), b["h"]).view(np.uint16)
    places |= b["q"]
    s = np.ascontiguousarray(items_first(b["s"]))
    d = s[0] >> 12 | s[1] >> 8 & 0xF0 | s[2] >> 4 & 0xF00 | s[3] & 0xF000
    scale = np.empty((4, 4, *d.shape), np.float32)
    for i in range(4):
        scale[:, i] = s >> np.uint16(3 * i) & np.uint16(7)
    scale = _eighths(d.view(np.float16), scale).reshape(SUPER, 2, *d.shape)
    return Parts(_codes(room.taken(_ternary(), places)), scale)


_D = ("d", "<f2", 0)
SPLIT: Mapping[str, tuple[tuple[tuple[str, str, int], ...], Callable[[Fields, Scratch], Parts]]] = MappingProxyType(
    {
        "IQ2_XXS": ((_D, ("q", "<u4", 16)), _iq2_xxs),
        "IQ2_XS": ((_D, ("q", "<u2", 32), ("s", "u1", 8)), _iq2_xs),
        "IQ2_S": ((_D, ("q", "u1", 32), ("signs", "u1", 32), ("h", "u1", 8), ("s", "u1", 8)), _iq2_s),
        "IQ3_XXS": ((_D, ("q", "u1", 64), ("extra", "<u4", 8)), _iq3_xxs),
        "IQ3_S": ((_D, ("q", "u1", 64), ("h", "u1", 8), ("signs", "u1", 32), ("s", "u1", 4)), _iq3_s),
        "IQ1_S": ((_D, ("q", "u1", 32), ("h", "<u2", 8)), _iq1_s),
        "IQ1_M": ((("q", "u1", 32), ("h", "u1", 16), ("s", "<u2", 4)), _iq1_m),
    }
)
