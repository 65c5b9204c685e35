"""Units over rows of the CPU backend against the reference backend's functions: every element, into poisoned memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_calls import HERE, RUNNABLE, poisoned, run_unit
from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.kv.layout import KvType
from polyseq.backends.cpu.kv.part import KvPart
from polyseq.backends.cpu.rows import activation
from polyseq.backends.cpu.rows.turns import Turns
from polyseq.backends.cpu.rows.words import CELL_SCRATCH_BYTES, C, W
from polyseq.backends.cpu.tiles.tiles import Tiles
from polyseq.backends.cpu.words.aligned import address, zeros
from polyseq.backends.cpu.words.records import K, S
from polyseq.backends.reference import ops as reference
from polyseq.backends.reference.run import Run
from polyseq.graph import CachePart, KvLayer, ops
from polyseq.memory.view import KvView

F32 = NDArray[np.float32]
RUN = Run(None)
RNG = np.random.default_rng(11)
CLOSE = 2e-6  # largest error over largest value
TURNS_WORD = 50


def rows_of(n: int, d: int) -> F32:
    return RNG.normal(0, 2, (n, d)).astype(np.float32)


def run(
    name: str,
    x: F32,
    words: dict[int, int],
    *,
    using: Features = HERE,
    per_unit: int = 5,
    step: dict[int, int] | None = None,
) -> F32:
    """What a kernel writes for rows x."""
    out = poisoned(*x.shape)
    stride = 4 * x.shape[1]
    base = {W.X: address(x), W.X_STRIDE: stride, W.OUT: address(out), W.OUT_STRIDE: stride, W.N: x.shape[1]}
    run_unit(name, base | words, n_rows=len(x), per_unit=per_unit, step_words=step, using=using)
    return out[: len(x)]


def second(y: F32) -> dict[int, int]:
    return {W.Y: address(y), W.Y_STRIDE: 4 * y.shape[1]}


def bits(x: float) -> int:
    return int(np.float32(x).view(np.int32))


def near(got: F32, want: F32, bound: float = CLOSE) -> bool:
    return bool(np.abs(got - want).max() <= bound * max(np.abs(want).max(), 1e-30))


@pytest.mark.parametrize("using", RUNNABLE, ids=str)
@pytest.mark.parametrize("shape", [(1, 64), (7, 33), (13, 5), (40, 576)])
def test_element_by_element(shape: tuple[int, int], using: Features) -> None:
    x, y = rows_of(*shape), rows_of(*shape)
    assert np.array_equal(run("rows.elements.add", x, second(y), using=using), x + y)
    assert np.array_equal(run("rows.elements.mul", x, second(y), using=using), x * y)
    assert np.array_equal(run("rows.elements.scale", x, {W.FACTOR: bits(1.7)}, using=using), x * np.float32(1.7))
    mask = RNG.random(shape[0]) < 0.5
    chosen = run("rows.elements.select", x, {**second(y), W.ROWS: address(mask)}, using=using)
    assert np.array_equal(chosen, np.where(mask[:, None], x, y))
    table, ids = rows_of(9, shape[1]), RNG.integers(0, 9, shape[0]).astype(np.int32)
    taken = run("rows.elements.take", x, {W.X: address(table), W.ROWS: address(ids)}, using=using)
    assert np.array_equal(taken, table[ids])


@pytest.mark.parametrize("using", RUNNABLE, ids=str)
@pytest.mark.parametrize("act", ["silu", "gelu_tanh", "gelu"])
def test_activations(act: str, using: Features) -> None:
    x, y = rows_of(6, 37), rows_of(6, 37)
    assert near(run(f"rows.elements.act_{act}", x, {}, using=using), reference.act(ops.Act(act), RUN, x.copy()))
    want = reference.glu(ops.Glu(act), RUN, x.copy(), y)
    assert near(run(f"rows.elements.glu_{act}", x, second(y), using=using), want)


@pytest.mark.parametrize("using", RUNNABLE, ids=str)
@pytest.mark.parametrize("shape", [(1, 64), (7, 33), (25, 576)])
def test_rms_norm(shape: tuple[int, int], using: Features) -> None:
    x, weight = rows_of(*shape), rows_of(1, shape[1])[0]
    want = reference.rms_norm(ops.RmsNorm(1e-5), RUN, x, weight)
    got = run("rows.norm.rms", x, {W.WEIGHT: address(weight), W.FACTOR: bits(1e-5)}, using=using)
    assert near(got, want)


@pytest.mark.parametrize("using", RUNNABLE, ids=str)
def test_rms_norm_to_records(using: Features) -> None:
    """The records are those of the rows, bit for bit."""
    x, weight = rows_of(25, 576), rows_of(1, 576)[0]
    words = {W.WEIGHT: address(weight), W.FACTOR: bits(1e-5)}
    got = run("rows.norm.rms", x, words, using=using)
    records = zeros((3, 18, activation.N_ROWS), activation.ROW)
    run("rows.norm.rms", x, {**words, W.OUT: 0, W.RECORDS: address(records)}, using=using)
    want = activation.values(activation.quantised(np.ascontiguousarray(got)), 25, 576)
    assert np.array_equal(activation.values(records, 25, 576), want)


@pytest.mark.parametrize("using", RUNNABLE, ids=str)
@pytest.mark.parametrize(("n_head", "head"), [(3, 64), (1, 256), (4, 20)])
def test_head_norm(n_head: int, head: int, using: Features) -> None:
    x, weight = rows_of(7, n_head * head), rows_of(1, head)[0]
    want = reference.head_norm(ops.HeadNorm(head, 1e-6), RUN, x, weight)
    words = {W.WEIGHT: address(weight), W.FACTOR: bits(1e-6), W.HEAD: head}
    assert near(run("rows.norm.head", x, words, using=using), want)


@pytest.mark.parametrize("using", RUNNABLE, ids=str)
@pytest.mark.parametrize("mode", ["norm", "neox"])
@pytest.mark.parametrize(("n_head", "head", "n_rot"), [(3, 64, 64), (2, 256, 256), (2, 80, 32), (1, 96, 64)])
@pytest.mark.parametrize("with_factors", [False, True])
def test_rope(mode: str, n_head: int, head: int, n_rot: int, with_factors: bool, using: Features) -> None:
    x = rows_of(9, n_head * head)
    pos = np.array([0, 1, 2, 700, 5, 4095, 131071, 200000, 3], np.int32)
    factors = np.linspace(1, 4, n_rot // 2, dtype=np.float32) if with_factors else None
    params = ops.RopeParams(n_rot, 10000.0, 0.5, mode)
    args = (x, pos[None]) if factors is None else (x, pos[None], factors)
    want = reference.rope(ops.Rope(head, params), Run(None), *args)
    turns = Turns(params, factors).rows(pos)
    words = {W.HEAD: head, W.N_ROT: n_rot, W.TURNS: TURNS_WORD}
    got = run(f"rows.rope.{mode}", x, words, using=using, step={TURNS_WORD: address(turns)})
    assert near(got, want)
    in_place = x.copy()
    run(
        f"rows.rope.{mode}",
        in_place,
        {**words, W.OUT: address(in_place)},
        using=using,
        step={TURNS_WORD: address(turns)},
    )
    assert np.array_equal(in_place, got)


def bad_row(x: F32) -> F32:
    x[3, 1] = np.nan
    return x


@pytest.mark.parametrize("using", RUNNABLE, ids=str)
@pytest.mark.parametrize("kind", ["bf16", "f32", "int8"])
@pytest.mark.parametrize(("n_head", "head_k", "head_v"), [(3, 64, 64), (1, 256, 128), (2, 24, 20)])
@pytest.mark.parametrize("spoil", [lambda x: x, bad_row], ids=["finite", "nan"])
def test_cell_write(
    n_head: int, head_k: int, head_v: int, kind: KvType, using: Features, spoil: Callable[[F32], F32]
) -> None:
    """Cells hold what `put_values` says, bit for bit; no other cell is touched."""
    n = 21
    layers = {2: KvLayer(n_head, head_k, head_v), 5: KvLayer(1, 32, 32)}
    written, wanted = (KvPart(CachePart("kv", 1, 64, layers), kind, using) for _ in range(2))
    cells = RNG.permutation(64)[:n].astype(np.int32)
    members = np.zeros((1, 64), np.bool_)
    members[0, cells] = True
    pos = np.arange(n, dtype=np.int32)
    cell_pos = np.full((1, 64), -1, np.int32)
    cell_pos[0, cells] = pos
    nothing = np.zeros(n, np.intp)
    view = KvView(64, np.zeros(1, np.int32), nothing, cells, pos, cell_pos, members, nothing)
    tiles = Tiles(written)
    tiles.plan(view)
    k, v = spoil(rows_of(n, n_head * head_k)), spoil(rows_of(n, n_head * head_v))
    layout, head = written.layout, written.layout.heads[2]
    step = tiles.step_words(partial_floats=0, n_head_kv=n_head)
    for side, x, dims in (("k", k, head_k), ("v", v, head_v)):
        is_k = side == "k"
        words = {
            C.X: address(x),
            C.X_STRIDE: 4 * x.shape[1],
            C.PART: S.KV_SWA,
            C.N_HEAD: n_head,
            C.HEAD: dims,
            C.OFFSET: layout.k_offset[2] if is_k else layout.v_offset[2],
            C.HEAD_BYTES: head.k_bytes if is_k else head.v_bytes,
            C.BUNDLE_BYTES: layout.bundle_bytes,
        }
        run_unit(
            f"kv.cell_write.{side}_{kind}",
            words,
            n_rows=n,
            per_unit=4,
            step_words={S.KV_SWA + word: value for word, value in step.items()},
            scratch_bytes=CELL_SCRATCH_BYTES,
            using=using,
        )
    places = tiles.row_places[:n]
    rows = wanted._cell_rows(2, head)
    rows["k"].put_values(places, k.reshape(n, n_head, head_k))
    rows["v"].put_values(places, v.reshape(n, n_head, head_v))
    if spoil is bad_row:
        for name, kept in written._cell_rows(2, head).items():
            assert (
                np.isfinite(kept.values(places)[[0, 1, 2, 4]]).all()
                and not np.isfinite(kept.values(places)[3, 0]).all()
            ), name
    else:
        assert np.array_equal(written.pool, wanted.pool)


def test_words_of_the_step_do_not_meet() -> None:
    assert S.KV_SWA + len(K) < TURNS_WORD
