"""Words of the records of linear ops: what the plan-maker writes for units.py, float_linear.py and panel_rows.py.

Enters: nothing. Leaves: word numbers, and the kernels' names. Everything is an address, a count or a size in bytes. All
buffers of rows have room for a multiple of 12 rows. `step[COUNT_WORD]` is the number of rows, `PER_UNIT` how many of
them a unit takes (a multiple of 12), so that N_FIXED is the number of column parts.
"""

from __future__ import annotations

from enum import IntEnum

from polyseq.backends.cpu.panels.panels import Panels
from polyseq.backends.cpu.rows.activation import N_ROWS, RECORD_BYTES, n_groups
from polyseq.backends.cpu.words.records import R

ROWS_PER_UNIT = 192  # with 600 inputs, this many rows' records fit a core's own cache beside some panels


class L(IntEnum):
    """Unit "linear.units.rows": out[n, n_out] (+)= x w^T (+ bias). N_FIXED = ceil(n_panels / PANELS_PER_UNIT)."""

    GEMM = R.OWN  # address of the kernel: see `gemm_name`
    X = R.OWN + 1  # records or f32 rows
    X_BLOCK = R.OWN + 2  # from 12 rows to the next 12
    X_STRIDE = R.OWN + 3  # from row to row; 0 for records
    N_INNER = R.OWN + 4  # groups of 32 inputs; inputs, where x is f32
    PANELS = R.OWN + 5
    PANEL_BYTES = R.OWN + 6
    N_PANELS = R.OWN + 7
    PANELS_PER_UNIT = R.OWN + 8
    OUT = R.OWN + 9  # f32
    OUT_STRIDE = R.OWN + 10
    N_OUT = R.OWN + 11  # columns; any number
    ACCUMULATE = R.OWN + 12  # 1: adds to what is there
    BIAS = R.OWN + 13  # address of f32 [n_panels * 16], or 0
    PAIR_GEMM = R.OWN + 14  # address of the kernel for few rows times two panels, or 0


class F(IntEnum):
    """Unit "linear.float_linear.rows": out[n, n_out] = act((out +) x w^T (+ bias)), weights that are numbers.

    N_FIXED = ceil(n_panels / PANELS_PER_UNIT); units are all rows of the first columns, then of the next.
    """

    GEMM = R.OWN  # address of the kernel: see `gemm_name`
    PAIR_GEMM = R.OWN + 1  # of the one for two panels
    X = R.OWN + 2  # f32 rows
    X_STRIDE = R.OWN + 3
    N_IN = R.OWN + 4
    PANELS = R.OWN + 5
    PANEL_BYTES = R.OWN + 6
    INPUT_BYTES = R.OWN + 7  # of a panel, for one input
    N_PANELS = R.OWN + 8
    PANELS_PER_UNIT = R.OWN + 9
    OUT = R.OWN + 10  # f32
    OUT_STRIDE = R.OWN + 11
    N_OUT = R.OWN + 12  # columns; any number
    ACCUMULATE = R.OWN + 13  # 1: adds to what is there
    BIAS = R.OWN + 14  # address of f32 [n_panels * 16], or 0
    ACT = R.OWN + 15  # 0: none, else 1 + an index into `ACTS`


class G(IntEnum):
    """Units "linear.units.glu_records" and ".glu_rows": act(x gate^T) * (x up^T). N_FIXED = ceil(n_out / 32)."""

    GEMM = R.OWN  # of gate; both read the same x
    X = R.OWN + 1
    X_BLOCK = R.OWN + 2
    X_STRIDE = R.OWN + 3
    N_INNER = R.OWN + 4
    PANELS = R.OWN + 5  # of gate
    PANEL_BYTES = R.OWN + 6
    N_PANELS = R.OWN + 7
    UP_GEMM = R.OWN + 8
    UP_PANELS = R.OWN + 9
    UP_PANEL_BYTES = R.OWN + 10
    OUT = R.OWN + 11  # records, or f32 rows
    OUT_STRIDE = R.OWN + 12  # from 12 rows to the next of records, from row to row of f32
    N_OUT = R.OWN + 13
    ACT = R.OWN + 14  # see `ACTS`
    PAIR_GEMM = (
        R.OWN + 15
    )  # address of the kernel for few rows of a panel of gate and one of up; 0: they differ in kind


ACTS = ("silu", "gelu_tanh", "gelu")  # G.ACT is an index into these
GLU_SCRATCH_BYTES = 2 * N_ROWS * 32 * 4  # what a worker needs for "linear.units.glu_*"; the others need less


class E(IntEnum):
    """Unit "linear.panel_rows.rows": out[i] = table[ids[i]] from panels. N_FIXED = 1, PER_UNIT any number of rows."""

    KERNEL = R.OWN  # address of the kernel "linear.panel_rows.<kind>"
    TABLE = R.OWN + 1  # its panels
    PANEL_BYTES = R.OWN + 2
    N_INNER = R.OWN + 3  # groups of 32 inputs; inputs, for float kinds
    IDS_WORD = R.OWN + 4  # the word of the step that holds the address of i32 ids, such as S.TOKEN
    OUT = R.OWN + 5  # f32 rows
    OUT_STRIDE = R.OWN + 6


def gemm_name(panels: Panels) -> str:
    """Pure. The kernel's name for compile.function."""
    return f"linear.{'gemm' if panels.reads_records else 'float_gemm'}.{panels.kind.name}"


def pair_gemm_name(panels: Panels) -> str:
    """Pure. The name of the kernel for two panels."""
    return f"{gemm_name(panels)}_pair"


def row_name(panels: Panels) -> str:
    """Pure. The name of the kernel that takes one row out of panels."""
    return f"linear.panel_rows.{panels.kind.name}"


def x_words(panels: Panels) -> tuple[int, int, int]:
    """Pure. X_BLOCK, X_STRIDE, N_INNER of an op that reads these panels; f32 rows lie one after another."""
    if panels.reads_records:
        return n_groups(panels.n_in) * RECORD_BYTES, 0, panels.n_groups
    return N_ROWS * panels.n_in * 4, panels.n_in * 4, panels.n_in
