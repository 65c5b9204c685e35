"""Words of records whose units are rows: element by element, norms, rotation, rounding, writing cells.

Enters: nothing. Leaves: word numbers and kernel names. `step[COUNT_WORD]` is the number of rows, PER_UNIT how many of
them a unit takes. Strides are bytes from row to row; widths are any number, but records want multiples of 32.
"""

from __future__ import annotations

from enum import IntEnum

from polyseq.backends.cpu.words.records import R


class W(IntEnum):
    """elements.add, .mul, .scale, .act_<f>, .glu_<f>, .select, .take, norm.rms, .layer, .head, rope.norm, .neox."""

    X = R.OWN  # address of rows f32
    X_STRIDE = R.OWN + 1
    Y = R.OWN + 2  # the second rows: add, mul, glu (up), select (where the mask is false)
    Y_STRIDE = R.OWN + 3
    OUT = R.OWN + 4  # may be X; norm.rms: 0 where only records are wanted
    OUT_STRIDE = R.OWN + 5
    N = R.OWN + 6  # columns
    ROWS = R.OWN + 7  # take: address of i32, which rows of X; select: address of u8, the mask
    WEIGHT = R.OWN + 8  # norms: address of f32 [N], head: [HEAD]
    FACTOR = R.OWN + 9  # bits of an f32: scale's factor, a norm's eps
    RECORDS = R.OWN + 10  # norm.rms: address of the same as records (activation.py), 0: not wanted
    HEAD = R.OWN + 11  # dims of a head: norm.head, rope
    N_ROT = R.OWN + 12  # rope: dims that turn, a multiple of 32
    BIAS = R.OWN + 14  # norm.layer: address of f32 [N]
    TURNS = R.OWN + 13  # rope: the step word with the address of this run's turns (turns.py), f32 [n_rows][N_ROT]


class C(IntEnum):
    """kv.cell_write.k_<kind>, .v_<kind>: heads of K or V rows go to the places of the step's part."""

    X = R.OWN  # address of rows f32 [n_tokens], in them heads of HEAD dims
    X_STRIDE = R.OWN + 1
    PART = R.OWN + 2  # S.KV or S.KV_SWA
    N_HEAD = R.OWN + 3
    HEAD = R.OWN + 4
    OFFSET = R.OWN + 5  # bytes from a bundle to the first of these heads
    HEAD_BYTES = R.OWN + 6  # bytes of one head in a block
    BUNDLE_BYTES = R.OWN + 7


class Q(IntEnum):
    """Unit "rows.quantise.rows": f32 rows -> records. N_FIXED = 1, PER_UNIT any number of rows."""

    X = R.OWN
    X_STRIDE = R.OWN + 1
    N_IN = R.OWN + 2  # a multiple of 32
    OUT = R.OWN + 3


CELL_SCRATCH_BYTES = 4096 * 4  # a head, filled up with zeros: up to 4096 dims
