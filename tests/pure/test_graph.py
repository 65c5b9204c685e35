"""Graphs: shape checks, the listing, one-op graphs."""

from __future__ import annotations

import numpy as np
import pytest

from polyseq.errors import InvalidModelFile
from polyseq.graph import RS, GraphBuilder, Input, Weight, single_op
from polyseq.graph.ops import (
    Act,
    Add,
    Attention,
    CacheShift,
    CacheWrite,
    Columns,
    GetRows,
    Glu,
    HeadNorm,
    Linear,
    Mul,
    Op,
    RmsNorm,
    Rope,
    RopeParams,
    Scale,
    Select,
    TakeRows,
)
from polyseq.graph.ops import Shape as S
from polyseq.graph.recurrent_ops import Conv, SelectiveScan
from polyseq.weights import ArrayWeights

ROPE = RopeParams(8, 10000.0)
ATTENTION = Attention(0, 4, 2, 8, 6, 0.5)


def x(*shape: int | str) -> Input:
    return Input("x", shape)


GOOD: list[tuple[Op, list[S], S | None]] = [
    (GetRows(), [(50, 16), ("n_tokens",)], ("n_tokens", 16)),
    (Select(), [("n",), ("n", 4), ("n", 4)], ("n", 4)),
    (RmsNorm(1e-5), [("n", 16), (16,)], ("n", 16)),
    (Linear(), [("n", 16), (24, 16)], ("n", 24)),
    (Linear(), [("n", 16), (24, 16), (24,)], ("n", 24)),
    (Rope(8, ROPE), [("n", 32), ("n_pos", "n")], ("n", 32)),
    (Rope(8, ROPE), [("n", 32), ("n_pos", "n"), (4,)], ("n", 32)),
    (CacheWrite(0, 2), [("n", 16), ("n", 12), ()], None),
    (ATTENTION, [("n", 32), ()], ("n", 24)),
    (HeadNorm(8, 1e-5), [("n", 32), (8,)], ("n", 32)),
    (Glu("silu"), [("n", 5), ("n", 5)], ("n", 5)),
    (Mul(), [("n", 5), ("n", 5)], ("n", 5)),
    (Scale(2.0), [("n", 5)], ("n", 5)),
    (Act("silu"), [("n", 5)], ("n", 5)),
    (Columns(3, 2), [("n", 5)], ("n", 2)),
    (Conv(0, 4), [("n", 16), (16, 4), ()], ("n", 16)),
    (Conv(0, 4), [("n", 16), (16, 4), (16,), ()], ("n", 16)),
    (SelectiveScan(0), [("n", 16), ("n", 16), (16, 3), ("n", 3), ("n", 3), (16,), ()], ("n", 16)),
    (Add(), [("n", 5), ("n", 5)], ("n", 5)),
    (TakeRows(), [("n", 5), ("n_outputs",)], ("n_outputs", 5)),
    (CacheShift(0, ROPE), [("n_stream", "n_cells")], None),
    (CacheShift(0, ROPE), [("n_stream", "n_cells"), (4,)], None),
]

BAD: list[tuple[Op, list[S]]] = [
    (GetRows(), [(50, 16)]),
    (Select(), [("n",), ("n", 4), ("n", 5)]),
    (Select(), [("m",), ("n", 4), ("n", 4)]),
    (RmsNorm(1e-5), [("n", 16), (15,)]),
    (Linear(), [("n", 16), (16, 24)]),
    (Linear(), [("n", 16), (24, 16), (16,)]),
    (Rope(8, ROPE), [("n", 30), ("n_pos", "n")]),
    (Rope(8, ROPE), [("n", 32), ("n_pos", "m")]),
    (Rope(8, ROPE), [("n", 32), ("n_pos", "n"), (8,)]),
    (CacheWrite(0, 2), [("n", 15), ("n", 12), ()]),
    (CacheWrite(0, 2), [("n", 16), ("m", 12), ()]),
    (ATTENTION, [("n", 24), ()]),
    (HeadNorm(8, 1e-5), [("n", 33), (8,)]),
    (HeadNorm(8, 1e-5), [("n", 32), (32,)]),
    (Glu("silu"), [("n", 5), ("n", 6)]),
    (Mul(), [("n", 5), ("n", 6)]),
    (Scale(2.0), [("n",)]),
    (Act("silu"), [("n", 5), ("n", 5)]),
    (Columns(3, 3), [("n", 5)]),
    (Columns(-1, 3), [("n", 5)]),
    (Conv(0, 4), [("n", 16), (16, 3), ()]),
    (Conv(0, 4), [("n", 16), (16, 4), (15,), ()]),
    (Conv(0, 4), [("n", 16), (16, 4)]),
    (SelectiveScan(0), [("n", 16), ("n", 15), (16, 3), ("n", 3), ("n", 3), (16,), ()]),
    (SelectiveScan(0), [("n", 16), ("n", 16), (16, 3), ("n", 3), ("n", 4), (16,), ()]),
    (SelectiveScan(0), [("n", 16), ("n", 16), (16, 3), ("n", 3), ("n", 3), (16,)]),
    (Add(), [("n", 5), ("n_outputs", 5)]),
    (TakeRows(), [("n", 5), ("m", 5)]),
    (CacheShift(0, ROPE), [("n_stream", "n_cells"), (3,)]),
]


@pytest.mark.parametrize(("op", "args", "out"), GOOD, ids=str)
def test_shape_of_a_result(op: Op, args: list[S], out: S | None) -> None:
    assert op.out_shape(*args) == out


@pytest.mark.parametrize(("op", "args"), BAD, ids=str)
def test_shapes_that_do_not_fit_are_refused_with_the_rule(op: Op, args: list[S]) -> None:
    with pytest.raises(ValueError, match=rf"^{type(op).__name__}\(.* cannot take .*: wants "):
        op.out_shape(*args)


def builder(**shapes: tuple[int, ...]) -> GraphBuilder:
    return GraphBuilder(ArrayWeights({name: np.zeros(shape) for name, shape in shapes.items()}))


def test_a_missing_tensor_is_named_with_what_was_wanted() -> None:
    with pytest.raises(InvalidModelFile, match=r"tensor ffn_up is missing, wanted with shape \[48, 16\]"):
        builder(w=(24, 16)).weight("ffn_up", 48, 16)


def test_a_tensor_of_another_shape_is_named_with_wanted_and_found() -> None:
    with pytest.raises(InvalidModelFile, match=r"tensor w has shape \[24, 16\], wanted \[16, 24\]"):
        builder(w=(24, 16)).weight("w", 16, 24)
    with pytest.raises(InvalidModelFile, match="tensor w has shape"):
        builder(w=(24, 16)).optional("w", 24)


def test_an_optional_tensor_may_be_missing() -> None:
    g = builder(w=(24, 16))
    assert g.optional("b", 24) == ()
    assert g.optional("w", 24, 16) == (Weight("w", (24, 16)),)


def test_an_effect_is_not_a_value() -> None:
    g = builder()
    write = (CacheWrite(0, 1), x("n", 4), x("n", 4), Input("kv", ()))
    with pytest.raises(ValueError, match="has no value"):
        g.apply(*write)
    with pytest.raises(ValueError, match="has a value"):
        g.effect(Add(), x("n", 4), x("n", 4))
    g.effect(*write)
    assert [n.out for n in g.build().nodes] == [None]


def test_listing_and_what_is_read() -> None:
    g = builder(table=(50, 16), w=(24, 16))
    rows = g.apply(GetRows(), g.weight("table", 50, 16), Input("token", ("n_tokens",)))
    y = g.apply(Linear(), rows, g.weight("w", 24, 16))
    y = g.apply(Rope(8, ROPE), y, Input("pos", ("n_pos", "n_tokens")))
    g.effect(CacheWrite(3, 2), y, y, Input("kv", ()))
    g.result("rows", y)
    graph = g.build()
    assert graph.describe().splitlines() == [
        "%0 [n_tokens, 16] = GetRows(table, <token>)",
        "%1 [n_tokens, 24] = Linear(%0, w)",
        "%2 [n_tokens, 24] = Rope(%1, <pos>) head_dim=8 n_rot=8 freq_base=10000.0 freq_scale=1.0 mode=norm",
        "CacheWrite(%2, %2, <kv>) il=3 n_head_kv=2",
        "rows [n_tokens, 24] = %2",
    ]
    assert [w.name for w in graph.weights()] == ["table", "w"]
    assert [i.name for i in graph.inputs()] == ["token", "pos", "kv"]


def test_what_nothing_needs_is_left_out() -> None:
    g = builder(w=(4, 3))
    unread = g.apply(Add(), x("n", 4), x("n", 4))
    g.apply(Glu("silu"), unread, unread)
    k = g.apply(Add(), x("n", 4), x("n", 4))
    g.effect(CacheWrite(0, 1), k, k, Input("kv", ()))
    g.apply(Conv(0, 3), x("n", 4), g.weight("w", 4, 3), RS)  # its state is read by later calls
    assert [type(n.op).__name__ for n in g.build().nodes] == ["Add", "CacheWrite", "Conv"]


def test_a_graph_of_one_op() -> None:
    graph = single_op(Add(), Input("a", ("n", 4)), Input("b", ("n", 4)))
    assert graph.describe().splitlines() == ["%0 [n, 4] = Add(<a>, <b>)", "out [n, 4] = %0"]
    assert single_op(CacheShift(0, ROPE), Input("shift", ("n_stream", "n_cells"))).results == {}
    with pytest.raises(ValueError, match="cannot take"):
        single_op(Add(), Input("a", ("n", 4)), Input("b", ("n", 5)))
