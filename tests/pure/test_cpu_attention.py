"""Attention of the CPU backend against the reference backend, over cells that hold the same numbers."""

from __future__ import annotations

import platform
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_calls import HERE, RUNNABLE, poisoned, run_unit
from cpu_cells import Cells, Row
from polyseq.backends.cpu.attention.dots import scores_body, sums_body
from polyseq.backends.cpu.attention.words import A, kernel_names, scratch_of
from polyseq.backends.cpu.compiler.assemble import assembly
from polyseq.backends.cpu.compiler.compile import function
from polyseq.backends.cpu.compiler.features import Features, InstructionSet
from polyseq.backends.cpu.kv.layout import KvType
from polyseq.backends.cpu.rows import activation
from polyseq.backends.cpu.words.aligned import address, zeros
from polyseq.backends.cpu.words.records import K, S
from polyseq.backends.cpu.words.tile_words import T, U
from polyseq.backends.reference.attention import attention
from polyseq.backends.reference.run import Run
from polyseq.graph import KvLayer, ops
from polyseq.memory.view import KvView

F32 = NDArray[np.float32]
# Largest error over largest value: f32 sums; bf16 queries and weights (8 bits); int16 queries and weights.
BOUNDS: dict[KvType, float] = {"f32": 5e-6, "bf16": 5e-6, "int8": 2e-4}
BF16_DOT = 8e-3
KINDS: tuple[KvType, ...] = ("bf16", "f32", "int8")


def attend(
    cells: Cells, view: KvView, q: F32, n_head: int, *, n_split: int = 0, records: bool = False, scale: float = 0.125
) -> F32:
    """What the kernel writes for these rows, into poisoned memory."""
    part, features = cells.part, cells.part.features
    head = part.layout.heads[0]
    cells.tiles.list_tiles(view, n_split=n_split)
    scratch = scratch_of(head, n_head)
    width = n_head * head.head_v
    out = poisoned(len(q), width)
    packed = zeros((len(out) // 12, -(-width // 32), activation.N_ROWS), activation.ROW)
    packed.view(np.uint8)[:] = 0xFF
    words = {
        **{word: function(name, features) for word, name in kernel_names(part.kind).items()},
        A.PART: S.KV,
        A.Q: address(q),
        A.Q_STRIDE: 4 * q.shape[1],
        A.OUT: 0 if records else address(out),
        A.OUT_STRIDE: 4 * width,
        A.RECORDS: address(packed) if records else 0,
        A.N_GROUP: n_head // head.n_head_kv,
        A.N_HEAD_KV: head.n_head_kv,
        A.HEAD_K: head.head_k,
        A.HEAD_V: head.head_v,
        A.SCALE: int(np.float32(scale * np.log2(np.e)).view(np.int32)),
        A.K_OFFSET: part.layout.k_offset[0],
        A.V_OFFSET: part.layout.v_offset[0],
        A.K_BYTES: head.k_bytes,
        A.V_BYTES: head.v_bytes,
        A.BUNDLE_BYTES: part.layout.bundle_bytes,
    }
    step = cells.tiles.step_words(partial_floats=scratch.partial_floats, n_head_kv=head.n_head_kv)
    run_unit(
        f"attention.tile_rows.{part.kind}",
        words,
        n_rows=cells.tiles.n_tiles,
        per_unit=1,
        n_fixed=head.n_head_kv,
        step_words={S.KV + word: value for word, value in step.items()},
        scratch_bytes=scratch.n_bytes,
        using=features,
    )
    return activation.values(packed, len(q), width) if records else out[: len(q)]


def expected(cells: Cells, view: KvView, q: F32, n_head: int, *, scale: float = 0.125) -> F32:
    head = cells.part.layout.heads[0]
    op = ops.Attention(0, n_head, head.n_head_kv, head.head_k, head.head_v, scale)
    return attention(op, Run(cells.reference), q, view)


def queries(n: int, n_head: int, head_k: int, seed: int = 5) -> F32:
    return np.random.default_rng(seed).normal(0, 2, (n, n_head * head_k)).astype(np.float32)


def error(got: F32, want: F32) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())


def bound(cells: Cells) -> float:
    return BF16_DOT if cells.part.kind == "bf16" and cells.part.features.bf16 else BOUNDS[cells.part.kind]


def check(cells: Cells, view: KvView, n_head: int) -> F32:
    """Right within the bound, also as records, with hidden cells full of NaN, and one row at a time."""
    q = queries(len(view.pos), n_head, cells.part.layout.heads[0].head_k)
    got, want = attend(cells, view, q, n_head), expected(cells, view, q, n_head)
    assert error(got, want) < bound(cells)
    cells.poison(view)
    assert np.array_equal(attend(cells, view, q, n_head), got), "hidden cells"
    assert np.array_equal(attend(cells, view, q, n_head, n_split=64), got), "shared out"
    return got


def round_robin(cells: Cells, n_seq: int, n_pos: int, *, start: int = 0, first_cell: int = 0) -> list[Row]:
    """Sequences take cells in turn, position after position; written in ubatches of one position."""
    rows: list[Row] = []
    for pos in range(start, n_pos):
        rows = [((s,), pos, first_cell + (pos - start) * n_seq + s) for s in range(n_seq)]
        cells.write(rows)
    return rows


SHAPES = [
    # n_head, n_head_kv, head_k, head_v
    (9, 3, 64, 64),
    (4, 1, 256, 256),
    (4, 4, 32, 32),
    (14, 2, 64, 64),
    (8, 2, 80, 96),
    (6, 2, 24, 20),
    (13, 1, 128, 64),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_head_shapes(shape: tuple[int, int, int, int], kind: KvType) -> None:
    n_head, n_head_kv, head_k, head_v = shape
    cells = Cells(KvLayer(n_head_kv, head_k, head_v), kind, HERE, n_cells=400, n_seq=3, unified=True)
    rows: list[Row] = [((pos % 3,), pos // 3, pos) for pos in range(180)]
    cells.write(rows)
    check(cells, cells.view(rows[-40:]), n_head)


@pytest.mark.parametrize("using", [*RUNNABLE, Features(InstructionSet.EMULATED, bf16=True)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_instruction_sets(using: Features, kind: KvType) -> None:
    cells = Cells(KvLayer(2, 64, 64), kind, using, n_cells=300, n_seq=2, unified=True)
    rows: list[Row] = [((pos % 2,), pos // 2, pos) for pos in range(210)]
    cells.write(rows)
    check(cells, cells.view(rows[-9:]), 6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize(("n_swa", "most_ahead"), [(0, 0), (7, 0), (0, 9), (40, 0), (5, 9), (0, 500)])
def test_random_views(kind: KvType, unified: bool, n_swa: int, most_ahead: int) -> None:
    rng = np.random.default_rng(3)
    n_seq = 7
    cells = Cells(KvLayer(2, 64, 64), kind, HERE, n_cells=500, n_seq=n_seq, unified=unified)
    free = [list(rng.permutation(500 if unified else 90)) for _ in range(cells.n_stream)]
    length = [0] * n_seq
    for _ in range(6):
        rows: list[Row] = []
        for s in rng.permutation(n_seq)[:5]:
            for _ in range(int(rng.integers(1, 14))):
                rows.append(((int(s),), length[s], int(free[0 if unified else s].pop())))
                length[s] += 1
        order = rng.permutation(len(rows))
        rows = [rows[i] for i in order]
        cells.write(rows)
        cells.free(int(rows[0][0][0]), keep=range(2, length[rows[0][0][0]]))
    ahead = rng.integers(0, most_ahead + 1, len(rows)).tolist() if most_ahead else ()
    check(cells, cells.view(rows, n_swa=n_swa, ahead=ahead), 6)


@pytest.mark.parametrize("kind", KINDS)
def test_shared_prefix_and_tree(kind: KvType) -> None:
    """Sequences 0..5 share 50 positions, 0..2 another 20; each goes on alone."""
    cells = Cells(KvLayer(1, 64, 64), kind, HERE, n_cells=600, n_seq=6, unified=True)
    cells.write([(tuple(range(6)), pos, pos) for pos in range(50)])
    cells.write([((0, 1, 2), 50 + i, 100 + i) for i in range(20)])
    starts = [70, 70, 70, 50, 50, 50]
    rows: list[Row] = []
    for step in range(21):
        rows = [((s,), starts[s] + step, 200 + 6 * step + s) for s in range(6)]
        cells.write(rows)
    view = cells.view(rows)
    check(cells, view, 3)
    who = cells.tiles.runs[:, U.WHO]
    assert (who == -1).any() and (who >= 0).any()


def test_a_row_that_sees_nothing_gives_zeros() -> None:
    cells = Cells(KvLayer(2, 64, 64), "bf16", HERE, n_cells=64, n_seq=2, unified=True)
    cells.write([((0,), 0, 0), ((0,), 1, 1), ((1,), 5, 2)])
    view = cells.view([((0,), 1, 1), ((1,), 5, 2)])
    view = replace(view, members=view.members & np.array([[False], [True]]))
    q = queries(2, 4, 64)
    got = attend(cells, view, q, 4)
    assert not got[0].any()
    assert error(got[1:], expected(cells, view, q, 4)[1:]) < BOUNDS["bf16"]


@pytest.mark.parametrize("kind", KINDS)
def test_long_rows_shared_out(kind: KvType) -> None:
    """More than one segment: any sharing out gives the same bits."""
    cells = Cells(KvLayer(1, 64, 64), kind, HERE, n_cells=2000, n_seq=1, unified=True)
    cells.write([((0,), pos, pos) for pos in range(1700)])
    view = cells.view([((0,), 1699, 1699)])
    q = queries(1, 4, 64)
    got = attend(cells, view, q, 4)
    assert error(got, expected(cells, view, q, 4)) < bound(cells)
    for n_split in (2, 3, 4, 100):
        assert np.array_equal(attend(cells, view, q, 4, n_split=n_split), got)
    assert len(cells.tiles.tiles) == 4 and (cells.tiles.tiles[:, T.N_PARTS] == 4).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unified", [True, False])
def test_a_row_has_the_same_bits_in_any_tile(kind: KvType, unified: bool) -> None:
    cells = Cells(KvLayer(2, 64, 64), kind, HERE, n_cells=700, n_seq=4, unified=unified)
    rows: list[Row] = [((s,), pos, 160 * s + pos if unified else pos) for s in range(4) for pos in range(150)]
    cells.write(rows)
    some = [row for row in rows if row[1] >= 130]
    q = queries(len(some), 6, 64)
    together = attend(cells, cells.view(some), q, 6)
    for picked in ([0], [3, 4, 5], list(range(0, 80, 7)), list(range(79, -1, -1))):
        alone = attend(cells, cells.view([some[i] for i in picked]), np.ascontiguousarray(q[picked]), 6)
        assert np.array_equal(alone, together[picked])


@pytest.mark.parametrize("kind", KINDS)
def test_records(kind: KvType) -> None:
    cells = Cells(KvLayer(2, 64, 64), kind, HERE, n_cells=200, n_seq=1, unified=True)
    rows: list[Row] = [((0,), pos, pos) for pos in range(100)]
    cells.write(rows)
    view, q = cells.view(rows[-30:]), queries(30, 4, 64)
    rows_f32 = np.ascontiguousarray(attend(cells, view, q, 4))
    assert np.array_equal(
        attend(cells, view, q, 4, records=True), activation.values(activation.quantised(rows_f32), 30, 256)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_visible_nan_is_seen(kind: KvType) -> None:
    cells = Cells(KvLayer(1, 64, 64), kind, HERE, n_cells=64, n_seq=2, unified=False)
    rows: list[Row] = [((s,), pos, pos) for s in range(2) for pos in range(20)]
    cells.write(rows)
    k = cells.part.keys(0)
    k.put_values(cells.part.places(0, np.array([3])), np.full((1, 1, 64), np.nan, np.float32))
    got = attend(cells, cells.view([rows[19], rows[39]]), queries(2, 2, 64), 2)
    assert np.isnan(got[0]).all() and np.isfinite(got[1]).all()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="assembly of x86")
@pytest.mark.parametrize(
    ("isa", "kind", "instruction"),
    [
        (InstructionSet.AVX512_VNNI, "bf16", "vdpbf16ps"),
        (InstructionSet.AVX512_VNNI, "int8", "vpdpwssd"),
        (InstructionSet.AVX512, "int8", "vpmaddwd"),
        (InstructionSet.AVX512, "bf16", "vfmadd"),
        (InstructionSet.AVX2, "int8", "vpmaddwd"),
    ],
)
def test_the_instruction_is_there(isa: InstructionSet, kind: KvType, instruction: str) -> None:
    using = Features(isa, bf16=isa == InstructionSet.AVX512_VNNI)
    for body in (scores_body(kind, using), sums_body(kind, using)):
        assert instruction in assembly(body, 11, "kernel", using)


def test_steps_name_their_words() -> None:
    assert len({S.KV + word for word in K}) == len(K) <= S.KV_SWA - S.KV
