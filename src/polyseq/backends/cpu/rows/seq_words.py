"""Words of records whose units are sequences: attention over a whole sequence, its mean.

Enters: nothing. Leaves: word numbers, and how much memory of its own a worker needs.
"""

from __future__ import annotations

from enum import IntEnum

from polyseq.backends.cpu.words.records import R

N_BLOCK = 12  # query rows at a time
TILE_WORDS = 4  # i32: first row and rows of the sequence, then of the tile (seq_tiles.py)


class Q(IntEnum):
    """attention.self_attention.rows: N_FIXED = heads, COUNT_WORD = S.N_SEQ_TILES, PER_UNIT = 1. Rows f32."""

    Q = R.OWN
    K = R.OWN + 1
    V = R.OWN + 2
    OUT = R.OWN + 3
    STRIDE = R.OWN + 4  # bytes from row to row of all four
    HEAD = R.OWN + 5  # dims of a head
    SCALE = R.OWN + 6  # bits of an f32: scale * log2 e
    GEMM = R.OWN + 7  # address of float_gemm.f32
    PAIR_GEMM = R.OWN + 8  # address of float_gemm.f32_pair


class M(IntEnum):
    """pool.mean: COUNT_WORD = S.N_SEQS; a row of OUT per sequence, by its dense index."""

    X = R.OWN
    X_STRIDE = R.OWN + 1
    OUT = R.OWN + 2
    OUT_STRIDE = R.OWN + 3
    N = R.OWN + 4  # columns


def scratch_bytes(n_rows: int, head: int) -> int:
    """Pure. For self_attention.rows with sequences of up to n_rows rows: queries, K, V, scores, sums."""
    cells, dims = -(-n_rows // 16) * 16, -(-head // 16) * 16
    return 4 * (2 * N_BLOCK * dims + cells * dims * 2 + N_BLOCK * cells)
