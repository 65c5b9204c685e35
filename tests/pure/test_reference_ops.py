"""Every op of the reference backend against its formula, written out in float64 with plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from polyseq import graph
from polyseq.backends import backend
from polyseq.backends.reference import attention as attention_file
from polyseq.backends.reference.cache import ReferenceCache
from polyseq.backends.reference.ops import OPS
from polyseq.graph import CachePart, Input, Inputs, KvLayer, Ref, Weight, ops, single_op
from polyseq.memory.view import KvView
from polyseq.weights import ArrayWeights
from tiny import causal_view, masked_view

F32 = NDArray[np.float32]
KV = Input("kv", ())


def random(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def row_input(name: str, x: F32) -> Input:
    return Input(name, ("n", *x.shape[1:]))


def run(
    op: ops.Op, *args: Ref, weights: dict[str, F32] | None = None, cells: ReferenceCache | None = None, **inputs: Any
) -> F32 | None:
    """What the reference makes of one op, with `cells` as its cache tensors."""
    plan = backend("reference").load(ArrayWeights(weights or {})).plan(single_op(op, *args), cells)
    return plan.run(Inputs(**inputs)).get("out")


def close(found: F32 | None, wanted: Any, tolerance: float = 2e-6) -> None:
    wanted = np.asarray(wanted)
    assert found is not None
    assert found.dtype == np.float32 and found.shape == wanted.shape
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * scale)


def test_every_op_has_code() -> None:
    modules = {name: vars(module) for name, module in vars(graph).items() if name.endswith("ops")}
    assert {"ops", "recurrent_ops"} <= set(modules)
    defined = {v for names in modules.values() for v in names.values() if isinstance(v, type) and v is not ops.Op}
    assert set(OPS) == {v for v in defined if hasattr(v, "out_shape")}


def test_get_rows() -> None:
    table = random(7, 5)
    ids = np.array([3, 0, 3, 6], np.int32)
    out = run(ops.GetRows(), Weight("t", (7, 5)), Input("token", ("n",)), weights={"t": table}, token=ids)
    close(out, [[table[i][j] for j in range(5)] for i in ids], 0)


def test_select() -> None:
    a, b, mask = random(4, 3), random(4, 3, seed=1), np.array([True, False, False, True])
    args = (Input("is_embd", ("n",)), row_input("a", a), row_input("b", b))
    out = run(ops.Select(), *args, is_embd=mask, rows={"a": a, "b": b})
    close(out, [a[i] if mask[i] else b[i] for i in range(4)], 0)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_rms_norm(scale: float) -> None:
    x, weight, eps = random(3, 40) * np.float32(scale), random(40, seed=1), 1e-5
    wanted = np.empty(x.shape)
    for i in range(3):
        mean = sum(float(a) ** 2 for a in x[i]) / 40
        for j in range(40):
            wanted[i, j] = float(x[i, j]) / math.sqrt(mean + eps) * float(weight[j])
    close(run(ops.RmsNorm(eps), row_input("x", x), Weight("w", (40,)), weights={"w": weight}, rows={"x": x}), wanted)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 8, 33, 47, 48, 49, 200])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(n: int, with_bias: bool) -> None:
    x, weight, bias = random(n, 24), random(17, 24, seed=1), random(17, seed=2)
    args: tuple[Ref, ...] = (row_input("x", x), Weight("w", (17, 24)), *([Weight("b", (17,))] if with_bias else []))
    out = run(ops.Linear(), *args, weights={"w": weight, "b": bias}, rows={"x": x})
    wanted = np.einsum("ik,jk->ij", x.astype(np.float64), weight.astype(np.float64))
    close(out, wanted + (bias.astype(np.float64) if with_bias else 0))
    assert out is not None and out.flags.c_contiguous


def test_head_norm() -> None:
    x, weight, eps = random(3, 4 * 10) * 7, random(10, seed=1), 1e-6
    out = run(ops.HeadNorm(10, eps), row_input("x", x), Weight("w", (10,)), weights={"w": weight}, rows={"x": x})
    heads = x.reshape(3, 4, 10).astype(np.float64)
    close(out, (heads / np.sqrt((heads**2).mean(axis=2, keepdims=True) + eps) * weight).reshape(3, 40))


def roped(head: F32, p: int, params: ops.RopeParams, factors: F32 | None) -> list[float]:
    out = [float(a) for a in head]
    n = params.n_rot // 2
    for j in range(n):
        factor = 1.0 if factors is None else float(factors[j])
        t = p * params.freq_scale * params.freq_base ** (-2 * j / params.n_rot) / factor
        ia, ib = (2 * j, 2 * j + 1) if params.mode == "norm" else (j, j + n)
        a, b = float(head[ia]), float(head[ib])
        out[ia], out[ib] = a * math.cos(t) - b * math.sin(t), a * math.sin(t) + b * math.cos(t)
    return out


@pytest.mark.parametrize("head_dim", [8, 9, 12])
@pytest.mark.parametrize("with_factors", [False, True])
@pytest.mark.parametrize(("freq_scale", "mode"), [(1.0, "norm"), (0.25, "norm"), (0.25, "neox")])
def test_rope(head_dim: int, with_factors: bool, freq_scale: float, mode: Any) -> None:
    params = ops.RopeParams(8, 1000.0, freq_scale, mode)
    x, pos = random(4, 3 * head_dim), np.array([[0, 1, 77, 100_000]], np.int32)
    factors = np.array([1, 2, 3, 5], np.float32) if with_factors else None
    args: list[Ref] = [row_input("x", x), Input("pos", ("n_pos", "n"))]
    weights = {} if factors is None else {"f": factors}
    args += [Weight("f", (4,)) for _ in weights]
    out = run(ops.Rope(head_dim, params), *args, weights=weights, rows={"x": x}, pos=pos)
    heads = x.reshape(4, 3, head_dim)
    wanted = [[roped(h, int(pos[0, i]), params, factors) for h in heads[i]] for i in range(4)]
    close(out, np.reshape(wanted, (4, 3 * head_dim)))


FORMULAS: dict[ops.Activation, Callable[[float], float]] = {
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x / 2 * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "softplus": lambda x: math.log1p(math.exp(x)),
    "tanh": math.tanh,
}


@pytest.mark.parametrize("f", FORMULAS)
def test_glu_and_act(f: ops.Activation) -> None:
    gate, up = random(3, 6) * 3, random(3, 6, seed=1)
    gate[0, :4] = [-200, 200, -88.5, 0]
    acted = np.vectorize(FORMULAS[f])(gate.astype(np.float64))
    close(run(ops.Act(f), row_input("g", gate), rows={"g": gate}), acted)
    if f not in ("softplus", "tanh"):
        out = run(ops.Glu(f), row_input("g", gate), row_input("u", up), rows={"g": gate, "u": up})
        close(out, acted * up.astype(np.float64))


def test_gelu_keeps_the_digits_of_its_left_tail() -> None:
    x = np.linspace(-10, 10, 200, dtype=np.float32)[None]
    out = run(ops.Act("gelu"), row_input("x", x), rows={"x": x})
    assert out is not None
    np.testing.assert_allclose(out[0], [FORMULAS["gelu"](float(a)) for a in x[0]], rtol=1e-5)


def test_mul_scale_and_columns() -> None:
    a, b = random(3, 6), random(3, 6, seed=1)
    rows = {"a": a, "b": b}
    close(run(ops.Mul(), row_input("a", a), row_input("b", b), rows=rows), a.astype(np.float64) * b)
    close(run(ops.Scale(-2.5), row_input("a", a), rows=rows), a * -2.5)
    close(run(ops.Columns(2, 3), row_input("a", a), rows=rows), a[:, 2:5], 0)


def test_add_and_take_rows() -> None:
    a, b = random(3, 6), random(3, 6, seed=1)
    close(run(ops.Add(), row_input("a", a), row_input("b", b), rows={"a": a, "b": b}), a.astype(np.float64) + b)
    rows = np.array([2, 0], np.int32)
    out = run(ops.TakeRows(), row_input("a", a), Input("out_rows", ("m",)), rows={"a": a}, out_rows=rows)
    close(out, [a[2], a[0]], 0)
    empty = run(ops.TakeRows(), row_input("a", a), Input("out_rows", ("m",)), rows={"a": a}, out_rows=rows[:0])
    close(empty, np.empty((0, 6)))


# ---- the cache ---------------------------------------------------------------------------------------

N_HEAD, N_HEAD_KV, HEAD_K, HEAD_V = 4, 2, 6, 5
ATTENTION = ops.Attention(1, N_HEAD, N_HEAD_KV, HEAD_K, HEAD_V, 0.4)
LAYERS = (KvLayer(1, 2, 2), KvLayer(N_HEAD_KV, HEAD_K, HEAD_V))


def cache(n_stream: int = 3, n_cells: int = 12, *, seed: int = 5) -> ReferenceCache:
    """A cache whose layer 1 is full of random rows."""
    kv = ReferenceCache((CachePart("kv", n_stream, n_cells, dict(enumerate(LAYERS))),))
    kv.k[1][...] = random(*kv.k[1].shape, seed=seed)
    kv.v[1][...] = random(*kv.v[1].shape, seed=seed + 1)
    return kv


def rows_of(kv: ReferenceCache, stream: int) -> tuple[F32, F32]:
    """K and V of every cell of layer 1."""
    rows = kv.read("kv", stream, np.arange(kv.k[1].shape[2]))
    return rows["1.k"], rows["1.v"]


def attended(q: F32, kv: ReferenceCache, view: KvView) -> NDArray[np.float64]:
    out = np.zeros((len(q), N_HEAD, HEAD_V))
    visible = view.visible(slice(0, len(q)))
    streams = view.streams[view.row_stream]
    for i, h in np.ndindex(len(q), N_HEAD):
        seen = np.flatnonzero(visible[i])
        if not len(seen):
            continue
        k = kv.k[1][streams[i], h // (N_HEAD // N_HEAD_KV)][seen].astype(np.float64)
        v = kv.v[1][streams[i], h // (N_HEAD // N_HEAD_KV)][seen].astype(np.float64)
        scores = 0.4 * (k @ q[i].reshape(N_HEAD, HEAD_K)[h].astype(np.float64))
        weights = np.exp(scores - scores.max())
        out[i, h] = weights @ v / weights.sum()
    return out.reshape(len(q), N_HEAD * HEAD_V)


def attend(q: F32, kv: ReferenceCache, view: KvView) -> F32:
    out = run(ATTENTION, row_input("q", q), KV, cells=kv, rows={"q": q}, kv=view)
    assert out is not None
    return out


def ragged(counts: list[int], n_kv: int, *, seed: int = 0) -> NDArray[np.bool_]:
    """[n_tokens, n_kv] rows with random holes in what they see; every row sees something."""
    rng = np.random.default_rng(seed)
    n = sum(counts)
    visible = rng.random((n, n_kv)) < 0.5
    visible[np.arange(n), rng.integers(0, n_kv, n)] = True
    return visible


def ragged_view(streams: list[int], counts: list[int], n_kv: int) -> KvView:
    return masked_view(streams, counts, ragged(counts, n_kv))


VIEWS = {
    "one stream": causal_view([0], 5, 3),
    "decoding": causal_view([0, 1, 2], 1, 7),
    "rectangular": causal_view([1, 2], 4, 2),
    "scattered streams": ragged_view([2, 0], [3, 3], 9),
    "ragged": ragged_view([0, 1, 2], [1, 4, 4], 12),
    "an empty stream": ragged_view([0, 1, 2], [2, 0, 2], 12),
    "no rows": ragged_view([0], [0], 12),
    "rows of a stream apart": replace(ragged_view([0, 2, 1], [2, 3, 1], 12), row_stream=np.array([1, 0, 2, 1, 0, 1])),
    "a window": replace(causal_view([0, 1], 4, 5), n_swa=3),
    "spans": replace(causal_view([0, 1], 4, 5), last_seen=np.array([5, 8, 8, 8, 7, 7, 7, 8], np.int32), n_swa=6),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize(("most_scores", "most_rows"), [(1 << 22, 256), (1, 1), (70, 2), (100, 64), (200, 3)])
def test_attention(name: str, most_scores: int, most_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_file, "MOST_SCORES", most_scores)
    monkeypatch.setattr(attention_file, "MOST_ROWS", most_rows)
    view, kv = VIEWS[name], cache()
    q = random(len(view.cells), N_HEAD * HEAD_K)
    close(attend(q, kv, view), attended(q, kv, view))


def test_what_a_view_lets_rows_see() -> None:
    def seen(**how: object) -> list[list[int]]:
        view = replace(causal_view([0], 3, 4), **how)  # type: ignore[arg-type]
        view.cell_pos[0, 1] = -1  # a free cell
        return [np.flatnonzero(row).tolist() for row in view.visible(slice(None))]

    assert seen() == [[0, 2, 3, 4], [0, 2, 3, 4, 5], [0, 2, 3, 4, 5, 6]]
    assert seen(n_swa=2) == [[3, 4], [4, 5], [5, 6]]
    ahead = np.array([5, 5, 9], np.int32)
    assert seen(last_seen=ahead) == [[0, 2, 3, 4, 5], [0, 2, 3, 4, 5], [0, 2, 3, 4, 5, 6]]
    assert seen(last_seen=ahead, n_swa=2) == [[3, 4, 5], [4, 5], [5, 6]]


@pytest.mark.parametrize(
    ("streams", "n_tok", "past", "n_blocks"),
    [(3, 300, 700, 6), (32, 1, 4096, 1), (32, 1, 60_000, 5), (8, 16, 900, 1), (1, 1, 2_000_000, 1)],
)
def test_blocks_hold_every_row_once_within_their_budget(streams: int, n_tok: int, past: int, n_blocks: int) -> None:
    found = attention_file.blocks(causal_view(range(streams), n_tok, past), n_head=9)
    rows = np.arange(streams * n_tok)
    assert np.array_equal(np.concatenate([rows[b.rows] for b in found]), rows)
    for b in found:
        assert b.n_s * b.n_tok == 1 or 9 * b.n_s * b.n_tok * b.bias.shape[-1] <= attention_file.MOST_SCORES
    assert len(found) == n_blocks


def test_a_causal_tile_skips_the_cells_after_its_last_row() -> None:
    first, *_, last = attention_file.blocks(causal_view([0], 300, 700), n_head=9)
    assert first.cells == slice(0, 700 + attention_file.MOST_ROWS) and last.cells == slice(0, 1000)


def test_a_row_that_sees_nothing_gives_zeros() -> None:
    visible, kv = ragged([3, 2], 12), cache()
    visible[[1, 4]] = False
    view = masked_view([0, 1], [3, 2], visible)
    q = random(5, N_HEAD * HEAD_K)
    out = attend(q, kv, view)
    assert not out[[1, 4]].any() and not np.signbit(out[[1, 4]]).any()
    close(out, attended(q, kv, view))
    visible[...] = False
    assert not attend(q, kv, view).any()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("where", ["k", "v", "both"])
def test_what_no_row_sees_does_not_matter(poison: float, where: str) -> None:
    visible, kv = ragged([1, 4, 4], 12), cache()
    visible[:, [0, 5]] = False
    view = masked_view([0, 1, 2], [1, 4, 4], visible)
    q = random(9, N_HEAD * HEAD_K)
    wanted = attend(q, kv, view)
    for tensors in [kv.k] if where == "k" else [kv.v] if where == "v" else [kv.k, kv.v]:
        tensors[1][:, :, [0, 5]] = poison
    close(attend(q, kv, view), wanted, 1e-6)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["k", "v"])
def test_nan_of_one_sequence_stays_with_it(poison: float, where: str) -> None:
    """Two sequences interleaved in one stream; sequence 1's cells hold garbage in one dim of one KV head."""
    kv = cache(1, 12)
    seq_of_cell, seq_of_row = np.arange(12) % 2, np.array([0, 1, 0, 1])
    view = masked_view([0], [4], seq_of_row[:, None] == seq_of_cell[None, :])
    q = np.abs(random(4, N_HEAD * HEAD_K))
    wanted = attend(q, kv, view)
    (kv.k if where == "k" else kv.v)[1][0, 1, 3, 2] = poison
    found = attend(q, kv, view)
    close(found[[0, 2]], wanted[[0, 2]], 1e-6)
    heads = found[[1, 3]].reshape(2, N_HEAD, HEAD_V)
    assert np.isnan(heads[:, 2:, 2]).all(), "the row that sees it shows it"
    close(heads[:, :2], wanted[[1, 3]].reshape(2, N_HEAD, HEAD_V)[:, :2], 1e-6)


def test_a_query_with_nan_stays_alone() -> None:
    view, kv = causal_view([0, 1, 2], 2, 5), cache()
    q = random(6, N_HEAD * HEAD_K)
    wanted = attend(q, kv, view)
    q[3] = np.nan
    found = attend(q, kv, view)
    assert np.isnan(found[3]).all()
    rest = [0, 1, 2, 4, 5]
    close(found[rest], wanted[rest], 1e-6)


def test_cache_write() -> None:
    kv = cache()
    before = [rows_of(kv, s) for s in range(3)]
    k, v = random(5, N_HEAD_KV * HEAD_K), random(5, N_HEAD_KV * HEAD_V)
    view = ragged_view([2, 0], [2, 3], 12)
    view.cells[...] = [7, 1, 0, 11, 4]
    op = ops.CacheWrite(1, N_HEAD_KV)
    assert run(op, row_input("k", k), row_input("v", v), KV, cells=kv, rows={"k": k, "v": v}, kv=view) is None
    for i, stream in enumerate([2, 2, 0, 0, 0]):
        before[stream][0][view.cells[i]] = k[i].reshape(N_HEAD_KV, HEAD_K)
        before[stream][1][view.cells[i]] = v[i].reshape(N_HEAD_KV, HEAD_V)
    for stream in range(3):
        for found, wanted in zip(rows_of(kv, stream), before[stream], strict=True):
            np.testing.assert_array_equal(found, wanted)
    assert not kv.k[0].any() and not kv.v[0].any()


@pytest.mark.parametrize("with_factors", [False, True])
def test_cache_shift(with_factors: bool) -> None:
    kv, params = cache(), ops.RopeParams(4, 1000.0, 0.5)
    factors = np.array([1, 3], np.float32) if with_factors else None
    shift = np.zeros((3, 12), np.int32)
    shift[0, 3], shift[2, 0], shift[2, 11] = 5, -7, 1000
    before = [rows_of(kv, s) for s in range(3)]
    weights = {} if factors is None else {"f": factors}
    args: list[Ref] = [Input("shift", ("n_stream", "n_cells")), *(Weight("f", (2,)) for _ in weights)]
    assert run(ops.CacheShift(1, params), *args, weights=weights, cells=kv, shift=shift) is None
    for s in range(3):
        k, v = rows_of(kv, s)
        wanted = [[roped(h, int(shift[s, c]), params, factors) for h in before[s][0][c]] for c in range(12)]
        close(k, wanted)
        np.testing.assert_array_equal(v, before[s][1])


def test_copy_of_a_stream() -> None:
    kv = cache()
    untouched = rows_of(kv, 1)
    kv.copy_stream("kv", 0, 2)
    for found, wanted in zip(rows_of(kv, 2), rows_of(kv, 0), strict=True):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(rows_of(kv, 1)[0], untouched[0])
    assert kv.n_bytes == 4 * 3 * 12 * (1 * (2 + 2) + N_HEAD_KV * (HEAD_K + HEAD_V))


def test_a_missing_input_is_named() -> None:
    with pytest.raises(ValueError, match="reads the input 'pos', which was not given"):
        run(
            ops.Rope(4, ops.RopeParams(4, 1e4)),
            Input("x", ("n", 8)),
            Input("pos", ("p", "n")),
            rows={"x": random(2, 8)},
        )


def test_a_plan_without_cache_says_so() -> None:
    with pytest.raises(ValueError, match="made without cache tensors"):
        attend_args = {"q": random(3, N_HEAD * HEAD_K)}
        run(ATTENTION, Input("q", ("n", N_HEAD * HEAD_K)), KV, rows=attend_args, kv=causal_view([0], 3, 0))
