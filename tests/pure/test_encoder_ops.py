"""The encoders' ops against their definitions, sequence by sequence and row by row in float64."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from polyseq.backends.reference.loaded import ReferenceBackend
from polyseq.graph import SEQS, Input, Inputs, Weight, single_op
from polyseq.graph.encoder_ops import LayerNorm, MeanPool, PositionRows, SegmentRows, SelfAttention
from polyseq.graph.ops import Op
from polyseq.memory import SeqView
from polyseq.weights import ArrayWeights

RNG = np.random.default_rng(3)
# dense indexes in no order, equal lengths apart and together
LENGTHS = [(2, 3), (0, 1), (3, 3), (1, 5), (4, 3)]
VIEW = SeqView(5, np.repeat([k for k, _ in LENGTHS], [n for _, n in LENGTHS]).astype(np.int32))
N = len(VIEW.row_seq)


def rows_of(k: int) -> NDArray[np.intp]:
    return np.flatnonzero(VIEW.row_seq == k)


def run(
    op: Op, *args: Input | Weight, weights: dict[str, NDArray[np.float32]] | None = None, **inputs: object
) -> object:
    model = ReferenceBackend().load(ArrayWeights(weights or {}))
    plan = model.plan(single_op(op, *args), None)
    return plan.run(Inputs(seqs=VIEW, **inputs))["out"]  # type: ignore[arg-type]


def test_self_attention_sees_its_own_sequence_and_all_of_it() -> None:
    q, k, v = (RNG.standard_normal((N, 8)).astype(np.float32) for _ in range(3))
    op = SelfAttention(n_head=2, head_dim=4, scale=0.7)
    out = run(op, *(Input(n, ("n", 8)) for n in "qkv"), SEQS, rows={"q": q, "k": k, "v": v})
    wanted = np.empty((N, 8))
    for seq in range(5):
        at = rows_of(seq)
        for h in range(2):
            d = slice(4 * h, 4 * h + 4)
            scores = 0.7 * q[at, d].astype(np.float64) @ k[at, d].T.astype(np.float64)
            weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
            wanted[at, d] = weights @ v[at, d]
    np.testing.assert_allclose(out, wanted, atol=1e-6)  # type: ignore[arg-type]


def test_self_attention_bears_large_scores() -> None:
    q = np.full((N, 4), 300, np.float32)
    out = run(SelfAttention(1, 4, 1.0), *(Input(n, ("n", 4)) for n in "qkv"), SEQS, rows=dict.fromkeys("qkv", q))
    np.testing.assert_allclose(out, q)  # type: ignore[arg-type]


def test_what_is_in_another_sequence_does_not_matter() -> None:
    rows = {name: RNG.standard_normal((N, 4)).astype(np.float32) for name in "qkv"}
    args = [Input(n, ("n", 4)) for n in "qkv"]
    before = np.asarray(run(SelfAttention(1, 4, 0.5), *args, SEQS, rows=rows))
    for a in rows.values():
        a[rows_of(1)] = np.nan
    after = np.asarray(run(SelfAttention(1, 4, 0.5), *args, SEQS, rows=rows))
    others = VIEW.row_seq != 1
    np.testing.assert_array_equal(after[others], before[others])
    assert np.isnan(after[~others]).all()


def test_mean_pool_divides_by_the_sequence_s_own_length() -> None:
    x = RNG.standard_normal((N, 6)).astype(np.float32)
    out = run(MeanPool(), Input("x", ("n", 6)), SEQS, rows={"x": x})
    np.testing.assert_allclose(out, [x[rows_of(k)].mean(axis=0) for k in range(5)], rtol=1e-5)  # type: ignore[arg-type]


def test_layer_norm() -> None:
    x = (RNG.standard_normal((N, 16)) * 5 + 3).astype(np.float32)
    w, b = RNG.standard_normal((2, 16)).astype(np.float32)
    out = run(
        LayerNorm(1e-3),
        Input("x", ("n", 16)),
        Weight("w", (16,)),
        Weight("b", (16,)),
        weights={"w": w, "b": b},
        rows={"x": x},
    )
    y = x.astype(np.float64)
    wanted = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-3) * w + b
    np.testing.assert_allclose(out, wanted, atol=2e-6)  # type: ignore[arg-type]


def test_segments_end_with_a_separator_of_their_own_sequence() -> None:
    table = np.array([[0.0], [1.0]], np.float32)
    token = np.ones(N, np.int32)
    token[rows_of(1)] = [9, 7, 9, 7, 9]
    token[rows_of(3)[-1]] = 9  # the next sequence starts anew
    args = (Weight("t", (2, 1)), Input("token", ("n",)), SEQS)
    out = np.asarray(run(SegmentRows(9), *args, weights={"t": table}, token=token))[:, 0]
    assert out[rows_of(1)].tolist() == [0, 1, 1, 1, 1]
    assert out.sum() == 4
    assert not np.asarray(run(SegmentRows(None), *args, weights={"t": table}, token=token)).any()


def test_position_rows() -> None:
    table = RNG.standard_normal((7, 2)).astype(np.float32)
    pos = np.array([np.arange(N) % 7], np.int32)
    out = run(PositionRows(), Weight("t", (7, 2)), Input("pos", (1, "n")), weights={"t": table}, pos=pos)
    np.testing.assert_array_equal(out, table[pos[0]])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (SelfAttention(2, 4, 1.0), [("n", 8), ("n", 8), ("n", 4), ()]),
        (MeanPool(), [("n",), ()]),
        (LayerNorm(1e-5), [("n", 4), (4,), (3,)]),
        (SegmentRows(3), [(2, 4), ("n", 1), ()]),
        (PositionRows(), [(2, 4), ("n",)]),
    ],
)
def test_shapes_that_do_not_fit_are_refused(op: Op, shapes: list[tuple[int | str, ...]]) -> None:
    with pytest.raises(ValueError, match="cannot take"):
        op.out_shape(*shapes)
