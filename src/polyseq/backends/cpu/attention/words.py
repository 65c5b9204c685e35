"""Words of attention's record, and how much scratch its kernel takes: what a plan-maker needs without compiling.

Enters: a layer's sizes. Leaves: word numbers, bytes, names of kernels. tile_rows.py says what is done with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from polyseq.backends.cpu.kv.layout import HeadLayout, KvType
from polyseq.backends.cpu.words.records import R
from polyseq.backends.cpu.words.tile_words import MOST_LISTED, MOST_ROWS

TAIL_BYTES = 64  # behind a row of queries or sums: numbers that belong to it
STATE_BYTES = 320  # a row's softmax, see softmax.py
_LINE = 64


class A(IntEnum):
    """Words of an attention record, after those of the executor. It has N_TILES units per KV head."""

    SCORES = R.OWN  # address of attention_dots.scores_<kind>
    SUMS = R.OWN + 1  # address of attention_dots.sums_<kind>
    GUARDED = R.OWN + 2  # address of attention_dots.guarded_<kind>; int8: 0
    PART = R.OWN + 3  # which words of the step: S.KV or S.KV_SWA
    Q = R.OWN + 4  # address of rows f32 [n_tokens][n_head * head_k]
    Q_STRIDE = R.OWN + 5  # bytes from row to row
    OUT = R.OWN + 6  # address of rows f32 [n_tokens][n_head * head_v], 0: not wanted
    OUT_STRIDE = R.OWN + 7
    RECORDS = R.OWN + 8  # address of the same as records (activation.py), 0: not wanted; head_v a multiple of 32
    N_GROUP = R.OWN + 9  # query heads of one KV head
    N_HEAD_KV = R.OWN + 10
    HEAD_K = R.OWN + 11
    HEAD_V = R.OWN + 12
    SCALE = R.OWN + 13  # bits of the f32 by which queries are multiplied: scale * log2(e)
    K_OFFSET = R.OWN + 14  # bytes from a bundle to the layer's K
    V_OFFSET = R.OWN + 15
    K_BYTES = R.OWN + 16  # bytes of one head's K in a block
    V_BYTES = R.OWN + 17
    BUNDLE_BYTES = R.OWN + 18


@dataclass(frozen=True, slots=True)
class Scratch:
    """What one unit needs: offsets in a thread's scratch, for up to MOST_ROWS rows of `n_group` query heads."""

    n_group: int
    padded_k: int
    padded_v: int

    @property
    def n_rows(self) -> int:
        return MOST_ROWS * self.n_group

    @property
    def q_stride(self) -> int:
        return 4 * self.padded_k + TAIL_BYTES

    @property
    def o_stride(self) -> int:
        return 4 * self.padded_v + TAIL_BYTES

    @property
    def n_bytes(self) -> int:
        listed = self.n_rows * MOST_LISTED * _LINE
        return self.n_rows * (self.q_stride + 2 * self.o_stride + STATE_BYTES) + listed

    @property
    def partial_floats(self) -> int:
        """f32 that one shared-out segment of one KV head takes."""
        return self.n_rows * self.o_stride // 4


def scratch_of(head: HeadLayout, n_head: int) -> Scratch:
    """Pure. For a layer of `n_head` query heads."""
    return Scratch(n_head // head.n_head_kv, head.padded_k, head.padded_v)


def kernel_names(kind: KvType) -> dict[A, str]:
    """Pure. The kernels whose addresses a record holds; its unit is attention.<kind>."""
    names = {A.SCORES: f"attention.dots.scores_{kind}", A.SUMS: f"attention.dots.sums_{kind}"}
    return names if kind == "int8" else {**names, A.GUARDED: f"attention.dots.guarded_{kind}"}
