"""A square of 16 rows and 16 columns turned over in registers.

Enters: 16 vectors of 16 lanes. Leaves: 16 vectors, vector j of lane i of each.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from polyseq.backends.cpu.ir.emit import I32, Emit, Value, vec

_N = 16


def transposed(e: Emit, rows: Sequence[Value]) -> list[Value]:
    """out[j][i] = rows[i][j]: blocks of 8, 4, 2 and 1 change places across the diagonal."""
    out = list(rows)
    for size in (8, 4, 2, 1):
        for i in (i for i in range(_N) if not i & size):
            a, b = out[i], out[i + size]
            low = [j if not j & size else _N + j - size for j in range(_N)]
            high = [j + size if not j & size else _N + j for j in range(_N)]
            out[i], out[i + size] = (
                e.b.shuffle_vector(a, b, ir.Constant(vec(I32, _N), lanes)) for lanes in (low, high)
            )
    return out
