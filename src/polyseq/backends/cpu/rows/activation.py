"""What a linear op reads of its input rows: 8-bit integers with one scale per 32 inputs, in records.

Enters: rows x [n, n_in] f32. Leaves: records [n_blocks, n_groups, 12] of `ROW`, where a block is 12 rows and a group is
32 inputs. One row's part of a record, 48 bytes, so that a single row's lies in one cache line:

    byte 0    q      [32] i8   round(x / s)
    byte 32   s      f32       largest |x| of the row's group / 127
    byte 36   sum    f32       sum of q (an integer)
    byte 40   sum_a  f32       sum of the first 16
    byte 44   sum_b  f32       sum of the last 16

Every offset is known when kernels are compiled. Kernels read whole blocks, so buffers hold a multiple of 12 rows; rows
that nobody wrote only reach rows that nobody reads. `quantised` says in NumPy what the kernels of quantise.py write,
bit for bit. llama.cpp rounds rows the same way (Q8_0).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

N_ROWS = 12  # rows of a block
GROUP = 32  # inputs of a group
ROW = np.dtype([("q", "i1", (GROUP,)), ("s", "<f4"), ("sum", "<f4"), ("sum_a", "<f4"), ("sum_b", "<f4")])
ROW_BYTES = ROW.itemsize
RECORD_BYTES = N_ROWS * ROW_BYTES
SCALE, SUM, SUM_A, SUM_B = 32, 36, 40, 44  # offsets in a row's part

# Smaller groups count as this small: 127 / s stays finite.
LEAST = float(np.float32(1e-20))
INV_127 = float(np.float32(1 / 127))


def n_groups(n_in: int) -> int:
    """Pure. Groups that n_in inputs take; the last one is filled up with zeros."""
    return -(-n_in // GROUP)


def n_bytes(n: int, n_in: int) -> int:
    """Pure. Bytes of the records of n rows."""
    return -(-n // N_ROWS) * n_groups(n_in) * RECORD_BYTES


def quantised(x: NDArray[np.float32]) -> NDArray[np.void]:
    """Pure. x [n, n_in] f32 -> records [n_blocks, n_groups, 12] of `ROW`; rows after the n-th are zeros.

    A group with a NaN has the scale NaN, so its row, and no other, turns NaN in every linear op.
    """
    n, n_in = x.shape
    padded = np.zeros((-(-n // N_ROWS) * N_ROWS, n_groups(n_in) * GROUP), np.float32)
    padded[:n, :n_in] = x
    groups = padded.reshape(-1, N_ROWS, n_groups(n_in), GROUP).swapaxes(1, 2)  # [block, group, row, input]
    with np.errstate(all="ignore"):
        largest = np.abs(groups).max(-1)
        largest = np.where(largest <= np.float32(LEAST), np.float32(LEAST), largest)
        q = np.rint(groups * (np.float32(127) / largest)[..., None])
        q = np.fmin(np.fmax(q, -127), 127).astype(np.int8)  # fmax turns NaN into -127
    records = np.empty(groups.shape[:3], ROW)
    records["q"], records["s"] = q, largest * np.float32(INV_127)
    records["sum"], records["sum_a"], records["sum_b"] = q.sum(-1), q[..., :16].sum(-1), q[..., 16:].sum(-1)
    return records


def values(records: NDArray[np.void], n: int, n_in: int) -> NDArray[np.float32]:
    """Pure. The rows [n, n_in] f32 that records [n_blocks, n_groups, 12] of `ROW` stand for: s * q."""
    rows = (records["q"] * records["s"][..., None]).swapaxes(1, 2).reshape(-1, records.shape[1] * GROUP)
    return rows[:n, :n_in].astype(np.float32)
