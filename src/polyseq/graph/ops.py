"""The ops a graph is made of: what each computes, with parameters only and no arithmetic.

Enters: nothing; an op is a value. Leaves: `out_shape`, the shape rule that the builder calls for every node.
Step 5 (what to compute). The docstring of an op is its definition; a backend gives it code, and the reference
backend's code is the one all others are compared with. Shapes are tuples of ints and of names of the ubatch's
own sizes ("n_tokens", "n_outputs"); rows come first, features last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Dim = int | str
Shape = tuple[Dim, ...]
# silu(x) = x / (1 + e^-x); gelu(x) = x/2 (1 + erf(x / sqrt 2)); gelu_tanh(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715
# x^3))) (arXiv:1606.08415); softplus(x) = log(1 + e^x).
Activation = Literal["silu", "gelu", "gelu_tanh", "softplus", "tanh"]


class Op(Protocol):
    """Parameters of one op. `out_shape` is pure: the result's shape, None for an op that only has an effect."""

    def out_shape(self, *args: Shape) -> Shape | None:
        """Raises ValueError where the arguments' shapes do not fit the op's definition."""
        ...


def want(ok: bool, op: Op, args: tuple[Shape, ...], rule: str) -> None:
    if not ok:
        raise ValueError(f"{op} cannot take {', '.join(map(str, args))}: wants {rule}")


@dataclass(frozen=True, slots=True)
class RopeParams:
    """How positions become angles (RoFormer, arXiv:2104.09864): pair j of `n_rot / 2` turns by

    theta(p, j) = p * freq_scale * freq_base^(-2 j / n_rot) / factor[j]      (factor[j] = 1 without factors)

    Mode "norm" pairs neighbours: dims (2j, 2j + 1), as llama GGUF files are laid out; mode "neox" pairs halves: dims
    (j, j + n_rot / 2). Dims from `n_rot` on stay.
    """

    n_rot: int
    freq_base: float
    freq_scale: float = 1.0  # 1 / factor of linear position scaling
    mode: Literal["norm", "neox"] = "norm"


@dataclass(frozen=True, slots=True)
class GetRows:
    """table [n_table, d], ids [n] i32 -> [n, d]: out[i] = table[ids[i]]."""

    def out_shape(self, *args: Shape) -> Shape:
        want([len(a) for a in args] == [2, 1], self, args, "table [n_table, d], ids [n]")
        table, ids = args
        return (ids[0], table[1])


@dataclass(frozen=True, slots=True)
class Select:
    """mask [n] bool, a [n, d], b [n, d] -> [n, d]: out[i] = a[i] where mask[i], else b[i]."""

    def out_shape(self, *args: Shape) -> Shape:
        want([len(a) for a in args] == [1, 2, 2], self, args, "mask [n], a [n, d], b [n, d]")
        mask, a, b = args
        want(a == b and mask[0] == a[0], self, args, "mask [n], a [n, d], b [n, d]")
        return a


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """x [n, d], weight [d] -> [n, d]: out = x / sqrt(mean(x^2 over d) + eps) * weight (arXiv:1910.07467)."""

    eps: float

    def out_shape(self, *args: Shape) -> Shape:
        want([len(a) for a in args] == [2, 1], self, args, "x [n, d], weight [d]")
        x, weight = args
        want(weight[0] == x[1], self, args, "x [n, d], weight [d]")
        return x


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """x [n, n_head * head_dim], weight [head_dim] -> like x: `RmsNorm` of every head by itself (arXiv:2010.04245)."""

    head_dim: int
    eps: float

    def out_shape(self, *args: Shape) -> Shape:
        rule = f"x [n, n_head * {self.head_dim}], weight [{self.head_dim}]"
        want([len(a) for a in args] == [2, 1], self, args, rule)
        x, weight = args
        want(isinstance(x[1], int) and x[1] % self.head_dim == 0 and weight[0] == self.head_dim, self, args, rule)
        return x


@dataclass(frozen=True, slots=True)
class Linear:
    """x [n, n_in], weight [n_out, n_in] (, bias [n_out]) -> [n, n_out]: out = x weight^T (+ bias)."""

    def out_shape(self, *args: Shape) -> Shape:
        rule = "x [n, n_in], weight [n_out, n_in] (, bias [n_out])"
        want([len(a) for a in args] in ([2, 2], [2, 2, 1]), self, args, rule)
        x, weight = args[:2]
        want(x[1] == weight[1] and all(bias[0] == weight[0] for bias in args[2:]), self, args, rule)
        return (x[0], weight[0])


@dataclass(frozen=True, slots=True)
class Rope:
    """x [n, n_head * head_dim], pos [n_pos, n] i32 (, factors [n_rot / 2]) -> like x.

    In every head, each pair (a, b) of the first `n_rot` dims becomes (a cos t - b sin t, a sin t + b cos t)
    with t = theta(pos[0, i], j) of `RopeParams`.
    """

    head_dim: int
    params: RopeParams

    def out_shape(self, *args: Shape) -> Shape:
        rule = f"x [n, n_head * {self.head_dim}], pos [n_pos, n] (, factors [{self.params.n_rot // 2}])"
        want([len(a) for a in args] in ([2, 2], [2, 2, 1]), self, args, rule)
        x, pos = args[:2]
        fits = isinstance(x[1], int) and x[1] % self.head_dim == 0 and pos[1] == x[0]
        want(fits and all(f[0] == self.params.n_rot // 2 for f in args[2:]), self, args, rule)
        return x


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """k [n, n_head_kv * head_k], v [n, n_head_kv * head_v], kv (a view) -> nothing.

    Effect: row i's heads become cell kv.cells[i] of layer `il` in the row's own stream.
    """

    il: int
    n_head_kv: int

    def out_shape(self, *args: Shape) -> None:
        rule = f"k [n, {self.n_head_kv} * head_k], v [n, {self.n_head_kv} * head_v], kv"
        want([len(a) for a in args] == [2, 2, 0], self, args, rule)
        k, v = args[:2]
        whole = all(isinstance(a[1], int) and a[1] % self.n_head_kv == 0 for a in (k, v))
        want(whole and k[0] == v[0], self, args, rule)


@dataclass(frozen=True, slots=True)
class Attention:
    """q [n, n_head * head_k], kv (a view) -> [n, n_head * head_v].

    Head h of row i reads KV head h // (n_head / n_head_kv) of layer `il`, over the cells c that the view lets
    row i see:  out = sum_c softmax_c(scale * q . K[c]) V[c].  A row that sees no cell gives zeros; a cell that
    a row does not see has no influence on it, whatever is in there. Sees what earlier nodes wrote.
    """

    il: int
    n_head: int
    n_head_kv: int
    head_k: int
    head_v: int
    scale: float

    def out_shape(self, *args: Shape) -> Shape:
        rule = f"q [n, {self.n_head * self.head_k}], kv"
        want([len(a) for a in args] == [2, 0], self, args, rule)
        q = args[0]
        want(q[1] == self.n_head * self.head_k and self.n_head % self.n_head_kv == 0, self, args, rule)
        return (q[0], self.n_head * self.head_v)


@dataclass(frozen=True, slots=True)
class Glu:
    """gate [n, d], up [n, d] -> [n, d]: out = act(gate) * up (arXiv:2002.05202)."""

    act: Literal["silu", "gelu", "gelu_tanh"]

    def out_shape(self, *args: Shape) -> Shape:
        want(len(args) == 2 and args[0] == args[1], self, args, "gate [n, d], up [n, d]")
        return args[0]


@dataclass(frozen=True, slots=True)
class Add:
    """a [n, d], b [n, d] -> [n, d]: out = a + b."""

    def out_shape(self, *args: Shape) -> Shape:
        want(len(args) == 2 and args[0] == args[1], self, args, "a [n, d], b [n, d]")
        return args[0]


@dataclass(frozen=True, slots=True)
class Mul:
    """a [n, d], b [n, d] -> [n, d]: out = a * b."""

    def out_shape(self, *args: Shape) -> Shape:
        want(len(args) == 2 and args[0] == args[1], self, args, "a [n, d], b [n, d]")
        return args[0]


@dataclass(frozen=True, slots=True)
class Scale:
    """x [n, d] -> [n, d]: out = factor * x."""

    factor: float

    def out_shape(self, *args: Shape) -> Shape:
        want([len(a) for a in args] == [2], self, args, "x [n, d]")
        return args[0]


@dataclass(frozen=True, slots=True)
class Act:
    """x [n, d] -> [n, d]: out = f(x), element by element; see `Activation`."""

    f: Activation

    def out_shape(self, *args: Shape) -> Shape:
        want([len(a) for a in args] == [2], self, args, "x [n, d]")
        return args[0]


@dataclass(frozen=True, slots=True)
class Columns:
    """x [n, d] -> [n, count]: columns first .. first + count - 1."""

    first: int
    count: int

    def out_shape(self, *args: Shape) -> Shape:
        rule = f"x [n, at least {self.first + self.count}]"
        want([len(a) for a in args] == [2], self, args, rule)
        x = args[0]
        want(isinstance(x[1], int) and 0 <= self.first < self.first + self.count <= x[1], self, args, rule)
        return (x[0], self.count)


@dataclass(frozen=True, slots=True)
class TakeRows:
    """x [n, d], rows [m] i32 -> [m, d]: out[i] = x[rows[i]]."""

    def out_shape(self, *args: Shape) -> Shape:
        want([len(a) for a in args] == [2, 1], self, args, "x [n, d], rows [m]")
        x, rows = args
        return (rows[0], x[1])


@dataclass(frozen=True, slots=True)
class CacheShift:
    """shift [n_stream, n_cells] i32 (, factors [n_rot / 2]) -> nothing.

    Effect: K of layer `il`, every KV head, in cell c of stream s turns by theta(shift[s, c], j) as in `Rope`,
    so that a key written for position p stands as if written for p + shift.
    """

    il: int
    params: RopeParams

    def out_shape(self, *args: Shape) -> None:
        rule = f"shift [n_stream, n_cells] (, factors [{self.params.n_rot // 2}])"
        want([len(a) for a in args] in ([2], [2, 1]), self, args, rule)
        want(all(f[0] == self.params.n_rot // 2 for f in args[1:]), self, args, rule)
