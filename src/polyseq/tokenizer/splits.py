"""All ways in which pieces are made of two pieces, for all of them at once.

Enters: different pieces. Leaves: three columns: a piece, its left part, its right part.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_CODE_BITS = 21  # of a code point


def splits(pieces: list[str]) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Pure. Indices [n_splits] of wholes, left and right parts, for every cut that leaves two of the pieces."""
    codes = np.frombuffer("".join(pieces).encode("utf-32-le", "surrogatepass"), np.uint32)
    lengths = np.fromiter(map(len, pieces), np.intp, len(pieces))
    stops = np.cumsum(lengths)
    lefts = _prefixes(codes, stops - lengths, lengths, 1)
    rights = _prefixes(codes, stops - 1, lengths, -1)
    whole = np.repeat(np.arange(len(pieces)), lengths)  # [n_codes], as both columns
    cut = np.flatnonzero((lefts[:-1] >= 0) & (rights[1:] >= 0) & (whole[:-1] == whole[1:]))
    return whole[cut], lefts[cut], rights[cut + 1]


def _prefixes(
    codes: NDArray[np.uint32], first: NDArray[np.intp], lengths: NDArray[np.intp], step: int
) -> NDArray[np.intp]:
    """Pure. [n_codes] by place: the piece that consists of a piece's codes from its first up to there, -1 for none.

    Pieces begin at `first` [n] and go on in steps of 1, or from their ends in steps of -1. They grow code by code, and
    those that are alike so far share a number.
    """
    found = np.full(len(codes), -1, np.intp)
    growing = np.flatnonzero(lengths > 0)
    number = np.zeros(len(growing), np.int64)
    n = 0  # codes so far
    while len(growing):
        at = first[growing] + step * n
        distinct, number = np.unique(number << _CODE_BITS | codes[at], return_inverse=True)
        n += 1
        ends = lengths[growing] == n
        whole = np.full(len(distinct), -1, np.intp)
        whole[number[ends]] = growing[ends]
        found[at] = whole[number]
        growing, number = growing[~ends], number[~ends]
    return found
