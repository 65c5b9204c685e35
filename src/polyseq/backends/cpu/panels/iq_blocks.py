"""Types whose codes stand for rows of a large table: the few numbers that these rows are made of get codes of 4 bits.

Enters: the fields of blocks of 256 inputs. Leaves: `Parts` with codes (panel_kind.py: bit 3 is the sign, the rest
numbers what the table holds, in ascending order), d, and whole numbers as scales per 16 or 32 inputs. The tables are
gguf's. 8 inputs are one word of a panel, looked up as such: input i at bit 0 of byte i, input i + 4 at bit 4. What lies
packed is spread over the 16-bit places that are looked up.
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

from polyseq.backends.cpu.panels.panel_kind import SUPER
from polyseq.backends.cpu.panels.parts import U32, Fields, Parts, items_first
from polyseq.backends.cpu.panels.scratch import Scratch

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
U64 = NDArray[np.uint64]

_WORDS = 4  # of 8 inputs, a group


# --- tables


def _packed(codes: U8) -> U32:
    """Pure. Codes [n, 8] as words [n]."""
    return (codes[:, :4] | codes[:, 4:] << 4).astype(np.uint8).view(np.uint32).ravel()


@cache
def _words(name: str) -> U32:
    """Pure. A type's table [n] without signs; inputs 4 to 7 are 0 where it has only 4."""
    codec: Any = quants._type_traits[Q[name]]
    codec.init_grid()
    _, codes = np.unique(codec.grid, return_inverse=True)
    codes = codes.reshape(codec.grid_shape).astype(np.uint8)
    return _packed(np.pad(codes, ((0, 0), (0, 8 - codes.shape[1]))))


@cache
def _signs() -> U32:
    """Pure. Bits of 8 inputs as words [256]."""
    return _packed(8 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"))


def _signs_of_7() -> U32:
    """Pure. Signs stored as 7 bits [128]: the eighth makes their number even."""
    return _signs()[np.frombuffer(quants.IQ2_XXS.ksigns, np.uint8)]


@cache
def _signs_of_14() -> U64:
    """Pure. Two times the same [1 << 14]."""
    of_7 = _signs_of_7()
    return np.stack((np.tile(of_7, 128), np.repeat(of_7, 128)), axis=1).view(np.uint64).ravel()


@cache
def _words_and_signs(name: str, *, n_signs: int) -> U32:
    """Pure. A place in the type's table and above it 7 bits of signs, or 1 for all -> words."""
    words, signs = _words(name), _signs_of_7() if n_signs == 7 else _signs()[[0, 255]]
    return np.tile(words, len(signs)) | np.repeat(signs, len(words))


@cache
def _spread(n_bits: int, bits: int, n: int) -> NDArray[np.unsignedinteger]:
    """Pure. Numbers of so many bits -> n of their fields, each the high byte of a 16-bit number, as one word.

    What stands above the fields is repeated above each of them.
    """
    x = np.arange(1 << n_bits, dtype=np.uint16)[:, None]
    fields = x >> (bits * np.arange(n, dtype=np.uint16)) & np.uint16((1 << bits) - 1) | x >> (bits * n) << bits
    return (fields << np.uint16(8)).view(f"u{2 * n}").ravel()


# --- fields


def _by_14(extra: NDArray[np.uint32], room: Scratch) -> U16:
    """Pure. Low 28 bits of [*at, 8] in two pieces -> [*at, 16]."""
    pieces: U16 = room.empty((*extra.shape, 2), np.uint16)
    np.bitwise_and(extra, 0x3FFF, out=pieces[..., 0], casting="unsafe")
    np.right_shift(extra, 14, out=pieces[..., 1], casting="unsafe")
    pieces &= np.uint16(0x3FFF)
    return pieces.reshape(*extra.shape[:2], -1)


def _plane(words: U32) -> tuple[U32]:
    """Pure. Words [*at, 32] -> the one plane of codes, a view."""
    return (items_first(words).reshape(SUPER, _WORDS, *words.shape[:2]),)


def _odd(x: NDArray[Any]) -> U8:
    """Pure. 2 x + 1, for x below 128."""
    return (x << 1 | 1).astype(np.uint8)


def _by_halves(b: U8) -> U8:
    """Pure. Bytes [*at, n] -> scales of their low and high halves [n, 2, *at]."""
    first = np.ascontiguousarray(items_first(b))
    return np.stack((_odd(first & 15), _odd(first >> 4)), axis=1)


def _top_4(extra: NDArray[np.uint32]) -> U8:
    """Pure. [*at, 8] -> scales of their highest bits [8, 1, *at]."""
    return _odd(items_first(extra >> 28))[:, None]


# --- types


def _iq2_xxs(b: Fields, room: Scratch) -> Parts:
    low, extra = (room.copy(b["q"][..., i::2]) for i in range(2))
    places = room.taken(_spread(14, 7, 2), _by_14(extra, room)).view(np.uint16)
    places |= low.view(np.uint8)
    words = room.taken(_words_and_signs("IQ2_XXS", n_signs=7), places)
    return Parts(_plane(words), _top_4(extra), None, b["d"])


def _iq2_xs(b: Fields, room: Scratch) -> Parts:
    words = room.taken(_words_and_signs("IQ2_XS", n_signs=7), b["q"])
    return Parts(_plane(words), _by_halves(b["s"]), None, b["d"])


def _iq2_s(b: Fields, room: Scratch) -> Parts:
    places = room.taken(_spread(8, 2, 4), b["h"]).view(np.uint16)
    places |= b["q"]
    words = room.taken(_words("IQ2_S"), places)
    words |= room.taken(_signs(), b["signs"])
    return Parts(_plane(words), _by_halves(b["s"]), None, b["d"])


def _of_fours(name: str, places: NDArray[Any], room: Scratch) -> U32:
    """Pure. Places in a table of 4 inputs [*at, 64] -> words [*at, 32]."""
    words = room.taken(_words(name) << np.uint32(4), places[..., 1::2])
    words |= room.taken(_words(name), places[..., ::2])
    return words


def _iq3_xxs(b: Fields, room: Scratch) -> Parts:
    words = _of_fours("IQ3_XXS", b["q"], room)
    words |= room.taken(_signs_of_14(), _by_14(b["extra"], room)).view(np.uint32)
    return Parts(_plane(words), _top_4(b["extra"]), None, b["d"])


def _iq3_s(b: Fields, room: Scratch) -> Parts:
    places = np.unpackbits(b["h"].reshape(-1), bitorder="little").astype(np.uint16).reshape(b["q"].shape)
    places <<= 8
    places |= b["q"]
    words = _of_fours("IQ3_S", places, room)
    words |= room.taken(_signs(), b["signs"])
    return Parts(_plane(words), _by_halves(b["s"]).reshape(SUPER, 1, *b["d"].shape), None, b["d"])


def _iq1_s(b: Fields, room: Scratch) -> Parts:
    # 4 times 3 bits of place, 3 of scale, 1 of sign.
    high = b["h"] & 0xFFF
    high |= b["h"] >> 3 & 0x1000
    places = room.taken(_spread(13, 3, 4), high).view(np.uint16)
    places |= b["q"]
    words = room.taken(_words_and_signs("IQ1_S", n_signs=1), places)
    return Parts(_plane(words), _odd(items_first(b["h"] >> 12 & 7))[:, None], None, b["d"])


def _iq1_m(b: Fields, room: Scratch) -> Parts:
    # Halves of bytes: 3 bits of place, 1 of sign. Words of scales: 4 of 3 bits, 4 bits of the block's own.
    places = room.taken(_spread(8, 4, 2), b["h"]).view(np.uint16)
    places |= b["q"]
    words = room.taken(_words_and_signs("IQ1_S", n_signs=1), places)
    s = np.ascontiguousarray(items_first(b["s"]))
    d = s[0] >> 12 | s[1] >> 8 & 0xF0 | s[2] >> 4 & 0xF00 | s[3] & 0xF000
    scale = np.stack([_odd(s >> np.uint16(3 * i) & np.uint16(7)) for i in range(4)], axis=1)
    return Parts(_plane(words), scale.reshape(SUPER, 2, *d.shape), None, d.view(np.float16))


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
