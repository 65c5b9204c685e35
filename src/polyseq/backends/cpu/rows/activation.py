"""What a linear op reads of its input rows: 8-bit integers with one scale per 32 inputs, in records.

Enters: rows x [n, n_in] f32. Leaves: records [n_blocks, n_groups, 576] u8, where a block is 12 rows and a group is 32
inputs. One record, every offset known when kernels are compiled:

    byte 0     q      [12][32] i8   round(x / s)
    byte 384   s      [12] f32      largest |x| of the row's group / 127
    byte 432   sum    [12] f32      sum of q (an integer)
    byte 480   sum_a  [12] f32      sum of the first 16
    byte 528   sum_b  [12] f32      sum of the last 16

Kernels read whole blocks, so buffers hold a multiple of 12 rows; rows that nobody wrote only reach rows that nobody
reads. `quantised` says in NumPy what the kernels of quantise.py write, bit for bit. llama.cpp rounds rows the same way
(Q8_0).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

N_ROWS = 12  # rows of a block
GROUP = 32  # inputs of a group
RECORD_BYTES = 576
SCALE, SUM, SUM_A, SUM_B = 384, 432, 480, 528  # offsets in a record

# Smaller groups count as this small: 127 / s stays finite.
LEAST = float(np.float32(1e-20))
INV_127 = float(np.float32(1 / 127))


def n_groups(n_in: int) -> int:
    """Pure. Groups that n_in inputs take; the last one is filled up with zeros."""
    return -(-n_in // GROUP)


def n_bytes(n: int, n_in: int) -> int:
    """Pure. Bytes of the records of n rows."""
    return -(-n // N_ROWS) * n_groups(n_in) * RECORD_BYTES


def quantised(x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Pure. x [n, n_in] f32 -> records [n_blocks, n_groups, 576] u8; rows after the n-th are zeros.

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
    halves = q.reshape(*q.shape[:-1], 2, GROUP // 2).sum(-1).astype(np.float32)
    records = np.empty((*groups.shape[:2], RECORD_BYTES), np.uint8)
    records[..., :SCALE].view(np.int8).reshape(q.shape)[...] = q
    floats = records[..., SCALE:].view(np.float32).reshape(*groups.shape[:2], 4, N_ROWS)
    floats[..., 0, :] = largest * np.float32(INV_127)
    floats[..., 1, :] = halves.sum(-1)
    floats[..., 2, :] = halves[..., 0]
    floats[..., 3, :] = halves[..., 1]
    return records


def values(records: NDArray[np.uint8], n: int, n_in: int) -> NDArray[np.float32]:
    """Pure. The rows [n, n_in] f32 that records [n_blocks, n_groups, 576] stand for: s * q."""
    q = np.ascontiguousarray(records[..., :SCALE]).view(np.int8).reshape(*records.shape[:2], N_ROWS, GROUP)
    s = np.ascontiguousarray(records[..., SCALE:SUM]).view(np.float32)
    rows = (q * s[..., None]).swapaxes(1, 2).reshape(-1, records.shape[1] * GROUP)
    return rows[:n, :n_in].astype(np.float32)
