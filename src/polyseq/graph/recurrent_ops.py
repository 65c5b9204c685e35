"""Ops that carry a state along each sequence: what Mamba and short-convolution layers are made of.

Enters: nothing; an op is a value, as in `graph/ops.py`. Step 5. Rows come set by set, as many for every sequence:
row i is row i % n_seq_tokens of sequence i // n_seq_tokens. With a view of state cells (`RsView`) a sequence starts
from cell `src` (zeros where that is -1), and the state after a row is kept in the cell that `dst` names for it. So
these ops have a value and an effect.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyseq.graph.ops import Shape, want


@dataclass(frozen=True, slots=True)
class Conv:
    """x [n, d], weight [d, n_kernel] (, bias [d]), rs (a view) -> [n, d], each column by itself, looking back only:

    out[t] = sum_j weight[j] * x[t - (n_kernel - 1) + j] (+ bias), x from before the ubatch out of the state.

    State "conv" [d, n_kernel - 1] of layer `il`: the last n_kernel - 1 inputs, oldest first.
    """

    il: int
    n_kernel: int

    def out_shape(self, *args: Shape) -> Shape:
        rule = f"x [n, d], weight [d, {self.n_kernel}] (, bias [d]), rs"
        want([len(a) for a in args] in ([2, 2, 0], [2, 2, 1, 0]), self, args, rule)
        x, weight, *bias = args[:-1]
        want(weight == (x[1], self.n_kernel) and all(b[0] == x[1] for b in bias), self, args, rule)
        return x


@dataclass(frozen=True, slots=True)
class SelectiveScan:
    """x [n, d], dt [n, d], a [d, s], b [n, s], c [n, s], d [d], rs (a view) -> [n, d] (Mamba, arXiv:2312.00752).

    Per column, over the rows t of a sequence:  h = exp(dt[t] a) h + dt[t] x[t] b[t];  out[t] = c[t] . h + d x[t]

    State "ssm" [d, s] of layer `il`: h after the row.
    """

    il: int

    def out_shape(self, *args: Shape) -> Shape:
        rule = "x [n, d], dt [n, d], a [d, s], b [n, s], c [n, s], d [d], rs"
        want([len(a) for a in args] == [2, 2, 2, 2, 2, 1, 0], self, args, rule)
        x, dt, a, b, c, d, _ = args
        n, width, n_state = x[0], x[1], a[1]
        want(dt == x and a[0] == width and b == c == (n, n_state) and d[0] == width, self, args, rule)
        return x
