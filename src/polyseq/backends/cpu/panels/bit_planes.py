"""Codes moved between words, all inputs of a block at once: what the types keep side by side, panels keep by steps.

A word is 32 bits: 4 inputs' bytes. Exchanging bits between two arrays of words takes six operations however the bits
lie, and a square of bits (or of pairs, or of nibbles) is transposed by one exchange per halving of its side:

    word i      bit g                     of a byte          becomes        word g      bit i
    word s      bits 2f and 2f + 1        of a byte          becomes        word f      bits 2s and 2s + 1
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.panels.scratch import Scratch

U32 = NDArray[np.uint32]

# The lower of each two fields of so many bits, in all 4 bytes.
_LOWER = {bits: np.uint32(mask) for bits, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F))}


def exchange(x: U32, y: U32, bits: int, room: Scratch) -> None:
    """Changes x and y, of one shape: the upper field of each two in x and the lower one in y change places."""
    moved = np.right_shift(x, np.uint32(bits), out=room.empty(x.shape, np.uint32))
    moved ^= y
    moved &= _LOWER[bits]
    y ^= moved
    moved <<= np.uint32(bits)
    x ^= moved


def transpose(words: U32, bits: int, room: Scratch) -> None:
    """Changes words [8 / bits, ...]: field f of word s becomes field s of word f, in every byte."""
    n = len(words)
    while n > 1:
        pairs = words.reshape(-1, 2, n // 2, *words.shape[1:])
        exchange(pairs[:, 0], pairs[:, 1], bits * n // 2, room)
        n //= 2


def fifth_bits(high: U32, room: Scratch) -> U32:
    """Pure. Bit i of a word is input i's -> plane of 1-bit codes: step i at bit i of each byte."""
    # Places are numbers of five bits, turned by two: four exchanges of two of them, as masks and distances.
    out, moved = room.copy(high), room.empty(high.shape, np.uint32)
    for lower, upper in ((0, 2), (1, 3), (2, 4), (3, 4)):
        distance = np.uint32((1 << upper) - (1 << lower))
        mask = np.uint32(sum(1 << p for p in range(32) if p >> lower & 1 and not p >> upper & 1))
        np.right_shift(out, distance, out=moved)
        moved ^= out
        moved &= mask
        out ^= moved
        moved <<= distance
        out ^= moved
    return out
