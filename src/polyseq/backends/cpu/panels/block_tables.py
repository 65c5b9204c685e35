"""What kernels look up that take blocks apart (compiled_blocks.py): gguf's tables as codes, 8 inputs a word.

Enters: nothing. Leaves: arrays of 32-bit words. Input i of a word has its code at bit 0 of byte i, input i + 4 at bit
4: what a kind with `neighbours` (panel_kind.py) has in one place. Bit 3 of a code is the sign, the others number what
the table holds, in ascending order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf import quants
from gguf.constants import GGMLQuantizationType as Q
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """One type's tables; what it has none of is empty."""

    words: U32  # by place: 8 inputs without signs; where the type's table has only 4, inputs 4 to 7 are 0
    signs: U32  # by stored bits: 8 inputs' signs


def _packed(codes: U8) -> U32:
    """Pure. Codes [n, 8] as words [n]."""
    return (codes[:, :4] | codes[:, 4:] << 4).astype(np.uint8).view(np.uint32).ravel()


def _words(name: str) -> U32:
    """Pure. A type's table [n]."""
    codec: Any = quants._type_traits[Q[name]]
    codec.init_grid()
    _, codes = np.unique(codec.grid, return_inverse=True)
    codes = codes.reshape(codec.grid_shape).astype(np.uint8)
    return _packed(np.pad(codes, ((0, 0), (0, 8 - codes.shape[1]))))


def _signs() -> U32:
    """Pure. Of 8 bits [256]."""
    return _packed(8 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"))


def _signs_of_7() -> U32:
    """Pure. Of 7 bits [128]: the eighth makes their number even."""
    return _signs()[np.frombuffer(quants.IQ2_XXS.ksigns, np.uint8)]


def _none() -> U32:
    return np.zeros(0, np.uint32)


_MADE: Mapping[str, tuple[Callable[[], U32], Callable[[], U32]]] = MappingProxyType(
    {
        "IQ2_XXS": (partial(_words, "IQ2_XXS"), _signs_of_7),
        "IQ2_XS": (partial(_words, "IQ2_XS"), _signs_of_7),
        "IQ2_S": (partial(_words, "IQ2_S"), _signs),
        "IQ3_XXS": (partial(_words, "IQ3_XXS"), _signs_of_7),
        "IQ3_S": (partial(_words, "IQ3_S"), _signs),
        "IQ1_S": (partial(_words, "IQ1_S"), _none),
        "IQ1_M": (partial(_words, "IQ1_M"), _none),
        "TQ1_0": (_none, _none),
    }
)
COMPILED = frozenset(_MADE)  # types that kernels take apart


@cache
def tables(name: str) -> Tables:
    """Pure. Those of a type. Raises KeyError for a type that no kernel takes apart."""
    words, signs = _MADE[name]
    return Tables(words(), signs())
