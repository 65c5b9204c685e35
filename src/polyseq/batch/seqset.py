"""Sets of sequence ids as bit masks: bit `s % 64` of word `s // 64`.

Used by steps 2 to 4; a row's set is one line of `n_words` u64, so that 256 sequences take 32 bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_SEQ = 256
_BIT = np.left_shift(np.uint64(1), np.arange(64, dtype=np.uint64))


def n_words(n_seq: int) -> int:
    """Words of 64 bits that hold `n_seq` sequences."""
    return (n_seq + 63) // 64


def single_masks(seq_ids: NDArray[np.int32], words: int) -> NDArray[np.uint64]:
    """Pure. [n] ids -> [n, words], one bit in each line."""
    bits: NDArray[np.uint64] = _BIT[seq_ids & 63]
    if words == 1:
        return bits[:, None]
    masks = np.zeros((len(seq_ids), words), np.uint64)
    masks[np.arange(len(seq_ids)), seq_ids >> 6] = bits
    return masks


def union_by_row(seq_ids: NDArray[np.int32], offsets: NDArray[np.int64], words: int) -> NDArray[np.uint64]:
    """Pure. Row i holds ids `seq_ids[offsets[i]:offsets[i+1]]`, at least one -> [n_rows, words]."""
    return np.bitwise_or.reduceat(single_masks(seq_ids, words), offsets[:-1], axis=0)


def ids_of(mask: NDArray[np.uint64]) -> NDArray[np.int32]:
    """Pure. One mask [words] -> its ids, ascending."""
    bits = np.unpackbits(mask.astype("<u8", copy=False).view(np.uint8), bitorder="little")
    return bits.nonzero()[0].astype(np.int32)
