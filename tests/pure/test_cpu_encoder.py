"""Encoders' ops on the CPU backend against the reference's functions: poisoned outputs, odd sizes, equal bits alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as T
from numpy.typing import NDArray

from cpu_calls import HERE, RUNNABLE, poisoned, run_unit
from polyseq.backends.cpu.compiler.assemble import assembly
from polyseq.backends.cpu.compiler.compile import function
from polyseq.backends.cpu.compiler.features import Features, InstructionSet
from polyseq.backends.cpu.isa.sets import isa_of
from polyseq.backends.cpu.linear import float_gemm
from polyseq.backends.cpu.linear.words import ACTS, F, gemm_name, pair_gemm_name
from polyseq.backends.cpu.panels.panels import pack, unpack
from polyseq.backends.cpu.plan.build import Call
from polyseq.backends.cpu.plan.plan import CpuPlan
from polyseq.backends.cpu.rows import activation
from polyseq.backends.cpu.rows.seq_words import M, Q, scratch_bytes
from polyseq.backends.cpu.rows.words import W
from polyseq.backends.cpu.tiles.seq_tiles import MOST_ROWS, seq_tiles
from polyseq.backends.cpu.words.aligned import address, zeros
from polyseq.backends.reference import encoder
from polyseq.backends.reference.activations import gelu, silu
from polyseq.backends.reference.run import Run
from polyseq.context import Context
from polyseq.graph import encoder_ops as ops
from polyseq.memory import SeqView
from polyseq.model import Model
from stored_rows import tensor
from tiny_bert import tiny_bert

F32 = NDArray[np.float32]
RNG = np.random.default_rng(5)


def rows_of(n: int, d: int) -> F32:
    return RNG.normal(0, 1, (n, d)).astype(np.float32)


def bits(x: float) -> int:
    return int(np.float32(x).view(np.int32))


def view_of(lengths: list[int], order: list[int] | None = None) -> SeqView:
    order = list(range(len(lengths))) if order is None else order
    return SeqView(len(lengths), np.repeat(order, [lengths[k] for k in order]).astype(np.int32))


# --- linear ops with weights that are numbers


def linear(
    qtype: T, n_out: int, x: F32, *, out: F32, bias: F32 | None = None, accumulate: bool = False,
    act: str | None = None, using: Features = HERE, per_unit: int = 48,
) -> F32:  # fmt: skip
    """Runs the unit and returns the weights' values."""
    panels = pack(*tensor(qtype, n_out, x.shape[1]))
    read = poisoned(*x.shape)
    read[: len(x)] = x
    values = None if bias is None else np.pad(bias, (0, -len(bias) % 16))
    words = {
        F.GEMM: function(gemm_name(panels), using),
        F.PAIR_GEMM: function(pair_gemm_name(panels), using),
        F.X: address(read),
        F.X_STRIDE: read.strides[0],
        F.N_IN: x.shape[1],
        F.PANELS: address(panels.data),
        F.PANEL_BYTES: panels.panel_bytes,
        F.INPUT_BYTES: 64 if qtype == T.F32 else 32,
        F.N_PANELS: panels.n_panels,
        F.PANELS_PER_UNIT: 4,
        F.OUT: address(out),
        F.OUT_STRIDE: out.strides[0],
        F.N_OUT: n_out,
        F.ACCUMULATE: int(accumulate),
        F.BIAS: 0 if values is None else address(values),
        F.ACT: 0 if act is None else 1 + ACTS.index(act),
    }
    n_fixed = -(-panels.n_panels // 4)
    run_unit("linear.float_linear.rows", words, n_rows=len(x), per_unit=per_unit, n_fixed=n_fixed, using=using)
    return unpack(panels)


@pytest.mark.parametrize("using", RUNNABLE, ids=str)
@pytest.mark.parametrize(("qtype", "n_in"), [(T.F32, 45), (T.F16, 33), (T.BF16, 78), (T.F32, 900)])
@pytest.mark.parametrize("n_out", [1, 17, 32, 88])
def test_linear_bias_residual_and_activation(qtype: T, n_in: int, n_out: int, using: Features) -> None:
    """Within 1e-6 of the sum of the terms' sizes, in a wider buffer of which nothing else changes."""
    x, n = rows_of(29, n_in), 29
    bias, residual = rows_of(1, n_out)[0], rows_of(n, n_out)
    wide = poisoned(n, n_out + 3)
    out = wide[:, :n_out]
    w = linear(qtype, n_out, x, out=out, using=using).astype(np.float64)
    exact, size = x @ w.T, np.abs(x) @ np.abs(w).T
    assert (np.abs(out[:n] - exact) <= 1e-6 * size).all()
    linear(qtype, n_out, x, out=out, bias=bias, using=using)
    assert (np.abs(out[:n] - (exact + bias)) <= 1e-6 * (size + np.abs(bias))).all()
    for act, f in (("gelu", gelu), ("silu", silu)):
        linear(qtype, n_out, x, out=out, bias=bias, act=act, using=using)
        want = f((exact + bias).astype(np.float32))
        assert (np.abs(out[:n] - want) <= 2e-6 * (size + np.abs(bias) + 1)).all()
    out[:n] = residual
    linear(qtype, n_out, x, out=out, bias=bias, accumulate=True, using=using)
    assert (np.abs(out[:n] - (exact + bias + residual)) <= 1e-6 * (size + np.abs(bias) + np.abs(residual))).all()
    assert np.isnan(wide[:, n_out:]).all()


@pytest.mark.parametrize("using", RUNNABLE, ids=str)
def test_a_row_has_the_same_bits_whatever_rows_it_is_computed_with(using: Features) -> None:
    x = rows_of(61, 500)
    whole = poisoned(61, 40)
    linear(T.F32, 40, x, out=whole, using=using)
    for start, stop in ((0, 1), (3, 5), (7, 20), (11, 61)):
        out = poisoned(stop - start, 40)
        linear(T.F32, 40, x[start:stop], out=out, per_unit=12, using=using)
        np.testing.assert_array_equal(out[: stop - start], whole[start:stop])


def test_two_panels_are_in_registers_at_once() -> None:
    here = Features(InstructionSet.AVX512)
    text = assembly(float_gemm.body_of("f32", isa_of(here)), 9, "k", here)
    assert text.count("vfmadd231ps") >= 2 * 2 * 12 * 4 and "zmm" in text and "call" not in text


# --- norm


@pytest.mark.parametrize("using", RUNNABLE, ids=str)
@pytest.mark.parametrize("shape", [(1, 64), (7, 33), (25, 384)])
def test_layer_norm(shape: tuple[int, int], using: Features) -> None:
    """Within 3e-6 of values of size 1; as records those of the rows, bit for bit."""
    x = rows_of(*shape) * 3 + np.float32(10)
    weight, bias = rows_of(2, shape[1])
    out = poisoned(*shape)
    words = {W.X: address(x), W.X_STRIDE: x.strides[0], W.OUT: address(out), W.OUT_STRIDE: x.strides[0], W.N: shape[1]}
    words |= {W.WEIGHT: address(weight), W.BIAS: address(bias), W.FACTOR: bits(1e-5)}
    run_unit("rows.norm.layer", words, n_rows=shape[0], per_unit=3, using=using)
    want = encoder.layer_norm(ops.LayerNorm(1e-5), Run(None), x, weight, bias)
    assert np.abs(out[: shape[0]] - want).max() < 1e-5
    assert np.isnan(out[shape[0] :]).all()
    if shape[1] % 32 == 0:
        records = zeros((-(-shape[0] // 12), shape[1] // 32, activation.N_ROWS), activation.ROW)
        both = words | {W.OUT: 0, W.RECORDS: address(records)}
        run_unit("rows.norm.layer", both, n_rows=shape[0], per_unit=3, using=using)
        rows = np.ascontiguousarray(out[: shape[0]])
        want_records = activation.values(activation.quantised(rows), *shape)
        np.testing.assert_array_equal(activation.values(records, *shape), want_records)


# --- attention over whole sequences


def attend(view: SeqView, q: F32, k: F32, v: F32, n_head: int, *, using: Features = HERE) -> F32:
    n, d = q.shape
    out, tiles = poisoned(n, d), seq_tiles(view)
    words = {Q.Q: address(q), Q.K: address(k), Q.V: address(v), Q.OUT: address(out), Q.STRIDE: 4 * d}
    words |= {Q.HEAD: d // n_head, Q.SCALE: bits(0.3 * np.log2(np.e))}
    words |= {
        Q.GEMM: function("linear.float_gemm.f32", using),
        Q.PAIR_GEMM: function("linear.float_gemm.f32_pair", using),
    }
    run_unit(
        "attention.self_attention.rows",
        words,
        n_rows=len(tiles.tiles),
        per_unit=1,
        n_fixed=n_head,
        step_words=tiles.step_words(),
        scratch_bytes=scratch_bytes(n, d // n_head),
        using=using,
    )
    assert np.isnan(out[n:]).all()
    return out[:n]


@pytest.mark.parametrize("using", RUNNABLE, ids=str)
@pytest.mark.parametrize(("n_head", "head"), [(3, 32), (2, 64), (2, 24), (1, 5), (1, 80)])
def test_self_attention_is_the_reference_s(n_head: int, head: int, using: Features) -> None:
    """Within 1e-5 of the largest value (scores reach 50), sequences up to several tiles long, in any order."""
    lengths = [1, 2, 12, 13, 16, 17, 31, 33, 100, MOST_ROWS, MOST_ROWS + 1, 2 * MOST_ROWS + 7]
    view = view_of(lengths, RNG.permutation(len(lengths)).tolist())
    q, k, v = (rows_of(sum(lengths), n_head * head) for _ in range(3))
    q *= 3
    op = ops.SelfAttention(n_head, head, 0.3)
    want = encoder.self_attention(op, Run(None), q, k, v, view)
    got = attend(view, q, k, v, n_head, using=using)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(v).max()


def test_a_sequence_has_the_same_bits_alone_and_no_other_matters() -> None:
    lengths = [5, 300, 1, 40]
    view = view_of(lengths)
    q, k, v = (rows_of(sum(lengths), 64) for _ in range(3))
    whole = attend(view, q, k, v, 2)
    for i, n in enumerate(lengths):
        at = slice(sum(lengths[:i]), sum(lengths[:i]) + n)
        np.testing.assert_array_equal(attend(view_of([n]), q[at].copy(), k[at].copy(), v[at].copy(), 2), whole[at])
    v[5:305], k[7] = np.nan, np.inf
    spoilt = attend(view, q, k, v, 2)
    np.testing.assert_array_equal(spoilt[:5], whole[:5])
    np.testing.assert_array_equal(spoilt[305:], whole[305:])
    assert not np.isfinite(spoilt[5:305]).any()


def test_self_attention_bears_large_scores_and_shows_nan() -> None:
    q = np.full((20, 32), 300, np.float32)
    np.testing.assert_allclose(attend(view_of([20]), q, q, q, 1), q, rtol=1e-6)
    bad = q.copy()
    bad[3, 4] = np.nan
    out = attend(view_of([20]), bad, q, q, 1)
    assert np.isnan(out[3]).all() and np.isfinite(np.delete(out, 3, 0)).all()


# --- means


@pytest.mark.parametrize("using", RUNNABLE, ids=str)
def test_mean_pool(using: Features) -> None:
    lengths = [1, 7, 300, 2]
    view = view_of(lengths, [2, 0, 3, 1])
    x, out = rows_of(310, 37), poisoned(4, 37)
    words = {M.X: address(x), M.X_STRIDE: 4 * 37, M.OUT: address(out), M.OUT_STRIDE: 4 * 37, M.N: 37}
    tiles = seq_tiles(view)
    run_unit("rows.pool_rows.mean", words, n_rows=4, per_unit=1, step_words=tiles.step_words(), using=using)
    want = encoder.mean_pool(ops.MeanPool(), Run(None), x, view)
    assert np.abs(out[:4] - want).max() < 2e-6
    assert np.isnan(out[4:]).all()


# --- graphs


def test_every_op_of_an_encoder_has_a_kernel(tmp_path: Path) -> None:
    """No call of a reference function is left in the plan, and gelu is part of its linear op."""
    model = Model.load(tiny_bert(tmp_path))
    ctx = Context(model, backend="cpu", n_threads=2, n_seq_max=4, pooling="mean")
    batch = ctx.batch()
    batch.extend([3, 4, 5], seq=0)
    ctx.encode(batch)
    (plan,) = ctx._plans._plans.values()
    assert isinstance(plan, CpuPlan) and plan._built is not None
    assert not any(isinstance(step, Call) for step in plan._built.steps)
    assert "activated" in {group.rule for group in plan._fused.groups}


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "none"])
def test_an_encoder_gives_the_reference_s_rows_and_the_same_bits_alone(pooling: Any, tmp_path: Path) -> None:
    model = Model.load(tiny_bert(tmp_path))
    n_vocab = model.architecture.hparams.n_vocab
    columns = [RNG.integers(0, n_vocab, n).astype(np.int32) for n in (9, 1, 30, 17)]

    def rows(backend: str, some: list[NDArray[np.int32]], **options: Any) -> F32:
        ctx = Context(model, backend=backend, n_seq_max=4, n_ubatch=64, pooling=pooling, **options)
        batch = ctx.batch()
        for seq, column in enumerate(some):
            batch.extend(column, seq=seq)
        outputs = ctx.encode(batch)
        return outputs.all_hidden() if pooling == "none" else outputs.all_pooled()

    got = rows("cpu", columns, n_threads=2)
    np.testing.assert_allclose(got, rows("reference", columns), atol=2e-5)
    alone = np.concatenate([rows("cpu", [column], n_threads=1) for column in columns])
    np.testing.assert_array_equal(got, alone)
