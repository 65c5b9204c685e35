"""Ops of encoders: models whose rows see all rows of their sequence, and that keep nothing between calls.

As in `ops.py`, an op's docstring is its definition. `seqs` is a `SeqView`, which says which rows are one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyseq.graph.ops import Shape, want


@dataclass(frozen=True, slots=True)
class PositionRows:
    """table [n_ctx, d], pos [n_pos, n] i32 -> [n, d]: out[i] = table[pos[0, i]]."""

    def out_shape(self, *args: Shape) -> Shape:
        want([len(a) for a in args] == [2, 2], self, args, "table [n_ctx, d], pos [n_pos, n]")
        table, pos = args
        return (pos[1], table[1])


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """table [n_types, d], token [n] i32, seqs -> [n, d]: out[i] = table[s], s the segment that row i is in.

    A segment ends with token `sep`: s is the number of `sep` in the row's sequence before the row, at most
    n_types - 1 (BERT's sentence pairs, arXiv:1810.04805). `sep` None: one segment, 0.
    """

    sep: int | None

    def out_shape(self, *args: Shape) -> Shape:
        want([len(a) for a in args] == [2, 1, 0], self, args, "table [n_types, d], token [n], seqs")
        table, token, _ = args
        return (token[0], table[1])


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """x [n, d], weight [d], bias [d] -> [n, d] (arXiv:1607.06450), mean and variance over d:

    out = (x - mean) / sqrt(variance + eps) * weight + bias
    """

    eps: float

    def out_shape(self, *args: Shape) -> Shape:
        rule = "x [n, d], weight [d], bias [d]"
        want([len(a) for a in args] == [2, 1, 1], self, args, rule)
        x, weight, bias = args
        want(weight[0] == bias[0] == x[1], self, args, rule)
        return x


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """q, k, v [n, n_head * head_dim], seqs -> like q.

    For each head, over all rows j of row i's sequence, later ones too:  out_i = sum_j softmax_j(scale * q_i . k_j) v_j.
    """

    n_head: int
    head_dim: int
    scale: float

    def out_shape(self, *args: Shape) -> Shape:
        rule = f"q, k, v [n, {self.n_head * self.head_dim}], seqs"
        want([len(a) for a in args] == [2, 2, 2, 0], self, args, rule)
        q, k, v, _ = args
        want(q == k == v and q[1] == self.n_head * self.head_dim, self, args, rule)
        return q


@dataclass(frozen=True, slots=True)
class MeanPool:
    """x [n, d], seqs -> [n_seqs, d]: out[k] is the mean of the rows of sequence k of the view."""

    def out_shape(self, *args: Shape) -> Shape:
        want([len(a) for a in args] == [2, 0], self, args, "x [n, d], seqs")
        return ("n_seqs", args[0][1])
