"""A letter and a colour for each ubatch, the same in every drawing.

The colours are Okabe and Ito's, told apart with any colour vision; the letter says it without colour.
"""

from __future__ import annotations

_COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
N_COLOURS = len(_COLOURS)
_DARK = ("#0072B2",)
INK, PAPER = "#000000", "#FFFFFF"


def letter_of(i_ubatch: int) -> str:
    """Pure. A to Z, then A1 to Z1, and so on."""
    turn, i = divmod(i_ubatch, 26)
    return chr(ord("A") + i) + (str(turn) if turn else "")


def colour_of(i_ubatch: int) -> str:
    """Pure. `#rrggbb`; neighbours always differ."""
    return _COLOURS[i_ubatch % N_COLOURS]


def ink_on(colour: str) -> str:
    """Pure. The colour of letters that reads best on `colour`."""
    return PAPER if colour in _DARK else INK


def pale(colour: str) -> str:
    """Pure. `colour` mixed with two thirds of white."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{(part + 2 * 255) // 3:02X}" for part in parts)
