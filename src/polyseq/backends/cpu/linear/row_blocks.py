"""How many rows at once: the counts that linear kernels are compiled for."""

from __future__ import annotations

N_BLOCK = 12  # rows of a record, the most that a kernel takes
ROW_COUNTS = (12, 8, 6, 4, 3, 2, 1)


def padded_rows(n: int) -> int:
    """Pure. Rows that are computed for n <= 12 rows: the next count that there is; buffers have room for 12."""
    return min(count for count in ROW_COUNTS if count >= n)
