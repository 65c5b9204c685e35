"""Linear kernels: exact values, the sums they are defined by, the same bits in every row block and instruction set."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from cpu_calls import HERE, RUNNABLE, call, poisoned, run_unit
from polyseq.backends.cpu.compiler.assemble import assembly
from polyseq.backends.cpu.compiler.compile import function
from polyseq.backends.cpu.compiler.features import Features, InstructionSet
from polyseq.backends.cpu.isa.sets import isa_of
from polyseq.backends.cpu.linear import float_gemm, gemm
from polyseq.backends.cpu.linear.row_blocks import ROW_COUNTS, padded_rows
from polyseq.backends.cpu.linear.words import ACTS, E, G, L, gemm_name, pair_gemm_name, row_name, x_words
from polyseq.backends.cpu.panels.panel_kind import KIND_OF, KINDS
from polyseq.backends.cpu.panels.panels import Panels, pack, unpack
from polyseq.backends.cpu.rows import activation
from polyseq.backends.cpu.rows.words import Q
from polyseq.backends.cpu.words.aligned import address, zeros
from polyseq.backends.cpu.words.records import S
from polyseq.backends.reference.activations import gelu, silu
from stored_rows import tensor

T = GGMLQuantizationType
F32 = NDArray[np.float32]
FLOATS = [T.F32, T.F16, T.BF16]
ALL_TYPES = [*KIND_OF, *FLOATS]
# One type for every kind of panel.
BY_KIND = {kind.name: next(t for t, k in KIND_OF.items() if k is kind) for kind in KINDS.values()} | {
    t.name.lower(): t for t in FLOATS
}


def stored_values(qtype: GGMLQuantizationType, rows: NDArray[np.uint8]) -> F32:
    return rows.view(np.float32) if qtype == T.F32 else quants.dequantize(rows, qtype)


def some_rows(n: int, n_in: int, seed: int = 1) -> F32:
    """Rows of very different sizes, with a group of zeros."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (n, n_in)) * np.exp(rng.normal(0, 2, (n, 1)))
    x[0, : min(32, n_in)] = 0
    return x.astype(np.float32)


@np.errstate(all="ignore")
def as_input(panels: Panels, x: F32) -> tuple[NDArray[np.generic], F32]:
    """x as the kernel reads it (padded to 12 rows, garbage there), and the values that stand in it."""
    if panels.reads_records:
        records = zeros((-(-len(x) // 12), panels.n_groups, activation.N_ROWS), activation.ROW)
        records[:] = activation.quantised(x)
        return records, activation.values(records, *x.shape)
    rows = poisoned(*x.shape)
    rows[: len(x)] = x
    return rows, x


def check(out: F32, x: F32, w: F32, *, tight: float = 1e-6, extra: F32 | float = 0.0) -> None:
    """out is x w^T up to `tight` of the sum of its terms' sizes."""
    x64, w64 = x.astype(np.float64), w.astype(np.float64)
    bound = tight * (np.abs(x64) @ np.abs(w64).T + np.abs(extra))
    assert (np.abs(out - (x64 @ w64.T + extra)) <= bound).all()


# --- packing


@pytest.mark.parametrize("qtype", ALL_TYPES, ids=lambda t: t.name)
def test_panels_keep_every_value(qtype: GGMLQuantizationType) -> None:
    for n_out, n_in in ((16, 512), (37, 256), (1, 768)):
        info, rows = tensor(qtype, n_out, n_in)
        np.testing.assert_array_equal(unpack(pack(info, rows)), stored_values(qtype, rows))


@pytest.mark.parametrize("qtype", FLOATS, ids=lambda t: t.name)
def test_panels_of_numbers_take_any_width(qtype: GGMLQuantizationType) -> None:
    info, rows = tensor(qtype, 19, 45)
    np.testing.assert_array_equal(unpack(pack(info, rows)), stored_values(qtype, rows))


def test_a_tall_matrix_is_packed_in_slices_that_meet() -> None:
    info, rows = tensor(T.Q4_1, 7001, 256)
    np.testing.assert_array_equal(unpack(pack(info, rows)), stored_values(T.Q4_1, rows))


@pytest.mark.parametrize("qtype", ALL_TYPES, ids=lambda t: t.name)
def test_slices_and_threads_change_nothing(qtype: GGMLQuantizationType, monkeypatch: pytest.MonkeyPatch) -> None:
    info, rows = tensor(qtype, 16 * 21 + 5, 512)
    whole = pack(info, rows, n_threads=1).data
    monkeypatch.setattr("polyseq.backends.cpu.panels.panels._SLICE_BYTES", 4 * whole.shape[1])
    for n_threads in (1, 2, 3):
        np.testing.assert_array_equal(pack(info, rows, n_threads=n_threads).data, whole)


@pytest.mark.parametrize("qtype", ALL_TYPES, ids=lambda t: t.name)
def test_any_bytes_are_packed_without_a_warning(qtype: GGMLQuantizationType) -> None:
    info, rows = tensor(qtype, 64, 1024)
    rows = np.random.default_rng(7).integers(0, 256, rows.shape, np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = unpack(pack(info, rows))
    with np.errstate(all="ignore"):
        wanted = stored_values(qtype, rows)
    # The same bits, but for those of numbers that are none.
    np.testing.assert_array_equal(np.isnan(values), np.isnan(wanted))
    np.testing.assert_array_equal(values.view(np.uint32)[~np.isnan(values)], wanted.view(np.uint32)[~np.isnan(wanted)])


def test_every_type_with_codes_that_gguf_can_dequantise_has_a_kind() -> None:
    known = {t for t in quants._type_traits if t != T.BF16}
    assert known <= set(KIND_OF)


def test_codes_take_no_more_room_than_said() -> None:
    for qtype, kind in KIND_OF.items():
        block, size = GGML_QUANT_SIZES[qtype]
        n_bytes = kind.panel_bytes(8)
        # Rows of a large table are fewer bits than the numbers they are made of.
        assert n_bytes <= 1.6 * 16 * 256 * size / block or (kind.neighbours and n_bytes <= 16 * 256 * 4.6 / 8)


# --- rows to records


def test_records_are_those_of_the_model_bit_for_bit() -> None:
    x = some_rows(41, 96)
    x[3, 40], x[5, 0], x[7, 70] = np.nan, np.inf, -np.inf
    x[9] = 1e-30
    padded = poisoned(*x.shape)
    padded[:41] = x
    out = zeros((4, 3, activation.N_ROWS), activation.ROW)
    words = {Q.X: address(padded), Q.X_STRIDE: 4 * 96, Q.N_IN: 96, Q.OUT: address(out)}
    run_unit("rows.quantise.rows", words, n_rows=41, per_unit=2)
    want = activation.quantised(x)
    for field in activation.ROW.fields or ():
        got, wanted = (records[field].swapaxes(1, 2).reshape(48, 3, -1)[:41] for records in (out, want))
        np.testing.assert_array_equal(got, wanted)


# --- micro-kernels


@pytest.mark.parametrize("name", BY_KIND)
def test_a_row_has_the_same_bits_in_every_block(name: str) -> None:
    info, stored = tensor(BY_KIND[name], 32, 512)
    panels = pack(info, stored)
    x = some_rows(12, 512)
    x[11] = x[0]
    read, values = as_input(panels, x)
    w = unpack(panels)
    _, stride, n_inner = x_words(panels)
    full = None
    for n in ROW_COUNTS:
        out = poisoned(13, 32)
        for p in range(2):
            args = (n, address(read), address(panels.data[p]), address(out) + 64 * p, 128, n_inner)
            call(gemm_name(panels), *args, 0, stride)
        assert np.isnan(out[n:]).all()
        full = out[:12].copy() if full is None else full
        np.testing.assert_array_equal(out[:n], full[:n])
        call(gemm_name(panels), n, address(read), address(panels.data[0]), address(out), 128, n_inner, 1, stride)
        np.testing.assert_array_equal(out[:n, :16], full[:n, :16] * 2)
    assert full is not None
    check(full, values, w)
    np.testing.assert_array_equal(full[11], full[0])


@pytest.mark.parametrize("name", KINDS)
def test_two_panels_side_by_side_give_the_same_bits(name: str) -> None:
    info, stored = tensor(BY_KIND[name], 64, 512)
    panels = pack(info, stored)
    read, _ = as_input(panels, some_rows(2, 512))
    n_inner = x_words(panels)[2]
    alone = poisoned(2, 64)
    for p in range(4):
        call(gemm_name(panels), 2, address(read), address(panels.data[p]), address(alone) + 64 * p, 256, n_inner, 0, 0)
    far = 2 * panels.panel_bytes
    for n in (1, 2):
        out = poisoned(3, 64)
        for p in range(2):
            place = address(out) + 64 * p
            call(pair_gemm_name(panels), n, address(read), address(panels.data[p]), place, 256, n_inner, 0, far, 128)
        np.testing.assert_array_equal(out[:n], alone[:n])
        assert np.isnan(out[n:]).all()
        call(pair_gemm_name(panels), n, address(read), address(panels.data), address(out), 256, n_inner, 1, far, 128)
        np.testing.assert_array_equal(out[:n, :16], alone[:n, :16] * 2)
        np.testing.assert_array_equal(out[:n, 16:32], alone[:n, 16:32])
        np.testing.assert_array_equal(out[:n, 32:48], alone[:n, 32:48] * 2)


@pytest.mark.parametrize("name", BY_KIND)
def test_all_instruction_sets_agree(name: str) -> None:
    info, stored = tensor(BY_KIND[name], 16, 512)
    panels = pack(info, stored)
    read, values = as_input(panels, some_rows(12, 512))
    _, stride, n_inner = x_words(panels)
    outs = {}
    # Emulation takes seconds to compile: for kinds that take its paths.
    sets = [u for u in RUNNABLE if u.isa != InstructionSet.EMULATED or name in ("q4_1", "q2_k", "iq1_m")]
    for using in sets:
        out = poisoned(12, 16)
        for n in (12, 3):
            args = (n, address(read), address(panels.data), address(out), 64, n_inner, 0, stride)
            call(gemm_name(panels), *args, using=using)
        if panels.reads_records:  # the kernel for two panels, here twice the same one
            twice = poisoned(2, 32)
            where = (address(read), address(panels.data), address(twice))
            call(pair_gemm_name(panels), 2, *where, 128, n_inner, 0, 0, 64, using=using)
            np.testing.assert_array_equal(twice[:2], np.tile(out[:2], 2))
        check(out, values, unpack(panels))
        outs[using.isa] = out
    # Integers are exact and the float32 part is the same: only a set without fused multiply-add may differ.
    same = [out for isa, out in outs.items() if isa != InstructionSet.GENERIC]
    for out in same[1:]:
        np.testing.assert_array_equal(out, same[0])


def test_the_named_instructions_are_there() -> None:
    def text(features: Features) -> str:
        return assembly(gemm.body_of(KINDS["q4_1"], isa_of(features)), 8, "k", features)

    vnni = text(Features(InstructionSet.AVX512_VNNI))
    assert vnni.count("vpdpbusd") > 8 * 12 and "zmm" in vnni and "vpmaddubsw" not in vnni
    using = Features(InstructionSet.AVX512_VNNI)
    pair = assembly(gemm.pair_body_of(KINDS["q4_1"], isa_of(using)), 9, "k", using)
    assert pair.count("vpdpbusd") == (1 + 2) * 2 * 8 and "zmm" in pair
    short = text(Features(InstructionSet.AVX2, avx_vnni=True))
    assert "vpdpbusd" in short and "zmm" not in short
    plain = text(Features(InstructionSet.AVX2))
    assert "vpmaddubsw" in plain and "vpdpbusd" not in plain and "zmm" not in plain
    floats = assembly(
        float_gemm.body_of("f32", isa_of(Features(InstructionSet.AVX2))), 8, "k", Features(InstructionSet.AVX2)
    )
    assert "vfmadd" in floats and "call" not in floats


# --- units


def linear(
    panels: Panels,
    x: F32,
    out: F32,
    *,
    bias: F32 | None = None,
    accumulate: bool = False,
    panels_per_unit: int = 2,
) -> None:
    """Runs the unit; `out` [padded rows, n_out]."""
    read, _ = as_input(panels, x)
    block, stride, n_inner = x_words(panels)
    if bias is not None:
        bias = np.pad(bias, (0, -len(bias) % 16))
    words = {
        L.GEMM: function(gemm_name(panels), HERE),
        L.PAIR_GEMM: function(pair_gemm_name(panels), HERE) if panels.reads_records else 0,
        L.X: address(read),
        L.X_BLOCK: block,
        L.X_STRIDE: stride,
        L.N_INNER: n_inner,
        L.PANELS: address(panels.data),
        L.PANEL_BYTES: panels.panel_bytes,
        L.N_PANELS: panels.n_panels,
        L.PANELS_PER_UNIT: panels_per_unit,
        L.OUT: address(out),
        L.OUT_STRIDE: out.strides[0],
        L.N_OUT: panels.n_out,
        L.ACCUMULATE: int(accumulate),
        L.BIAS: 0 if bias is None else address(bias),
    }
    n_fixed = -(-panels.n_panels // panels_per_unit)
    run_unit("linear.units.rows", words, n_rows=len(x), per_unit=48, n_fixed=n_fixed)


@pytest.mark.parametrize("n", [1, 2, 5, 7, 9, 11, 12, 13, 30, 48, 49, 100, 257, 600])
def test_any_number_of_rows(n: int) -> None:
    info, stored = tensor(T.Q4_1, 80, 96)
    panels = pack(info, stored)
    x = some_rows(n, 96)
    out = poisoned(n, 80)
    linear(panels, x, out, panels_per_unit=4)
    _, values = as_input(panels, x)
    check(out[:n], values, unpack(panels))
    # Rounding moves each input by half a step at most: that bounds what it does to the result.
    steps = np.abs(x.reshape(n, 3, 32)).max(-1) / 127
    moved = np.repeat(steps / 2, 32, axis=1).astype(np.float64) @ np.abs(unpack(panels)).T
    exact = x.astype(np.float64) @ unpack(panels).astype(np.float64).T
    assert (np.abs(out[:n] - exact) <= moved * 1.001 + 1e-6 * np.abs(x) @ np.abs(unpack(panels)).T).all()


@pytest.mark.parametrize("n", [1, 11, 49, 600])
@pytest.mark.parametrize("qtype", ALL_TYPES, ids=lambda t: t.name)
def test_every_type_in_its_narrowest_width(qtype: GGMLQuantizationType, n: int) -> None:
    """Sums of what stands there, to 1e-6 of their terms' sizes, for as few inputs as the type allows."""
    n_in = 1 if qtype in FLOATS else GGML_QUANT_SIZES[qtype][0]
    info, stored = tensor(qtype, 17, n_in)
    panels, x, out = pack(info, stored), some_rows(n, n_in), poisoned(n, 17)
    linear(panels, x, out)
    check(out[:n], as_input(panels, x)[1], stored_values(qtype, stored))


@pytest.mark.parametrize(("qtype", "n_in"), [(T.Q8_0, 96), (T.Q6_K, 512), (T.F32, 45), (T.F16, 33), (T.BF16, 77)])
@pytest.mark.parametrize("n_out", [1, 17, 40])
@pytest.mark.parametrize("n", [1, 2, 29])
def test_odd_widths_bias_and_residual(n: int, qtype: GGMLQuantizationType, n_in: int, n_out: int) -> None:
    info, stored = tensor(qtype, n_out, n_in)
    panels, x = pack(info, stored), some_rows(n, n_in)
    rng = np.random.default_rng(3)
    bias, residual = rng.normal(0, 1, n_out).astype(np.float32), rng.normal(0, 1, (n, n_out)).astype(np.float32)
    _, values = as_input(panels, x)
    w = unpack(panels)
    # Rows lie in a wider buffer: what stands between them must not change.
    wide = poisoned(n, n_out + 3)
    out = wide[:, :n_out]
    linear(panels, x, out)
    check(out[:n], values, w)
    linear(panels, x, out, bias=bias)
    check(out[:n], values, w, extra=bias)
    out[:n] = residual
    linear(panels, x, out, bias=bias, accumulate=True)
    check(out[:n], values, w, extra=bias + residual)
    assert np.isnan(wide[:, n_out:]).all()


def test_nan_and_infinity_stay_in_their_row() -> None:
    info, stored = tensor(T.Q4_1, 32, 96)
    panels, x = pack(info, stored), some_rows(14, 96)
    clean, dirty = poisoned(14, 32), poisoned(14, 32)
    linear(panels, x, clean)
    x[2, 5], x[12, 95] = np.nan, np.inf
    linear(panels, x, dirty)
    others = [r for r in range(14) if r not in (2, 12)]
    np.testing.assert_array_equal(dirty[others], clean[others])
    assert np.isnan(dirty[2]).all() and not np.isfinite(dirty[12]).any()


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    ("gate_type", "up_type", "n_in", "n_out"),
    [(T.Q4_K, T.Q6_K, 256, 96), (T.Q4_1, T.Q4_1, 96, 80), (T.F32, T.F32, 40, 50)],
)
@pytest.mark.parametrize("n", [1, 2, 27])
def test_gate_and_up(
    n: int, act: str, gate_type: GGMLQuantizationType, up_type: GGMLQuantizationType, n_in: int, n_out: int
) -> None:
    gate, up = (pack(*tensor(t, n_out, n_in, seed)) for t, seed in ((gate_type, 0), (up_type, 1)))
    x = some_rows(n, n_in) * np.float32(0.2)
    read, values = as_input(gate, x)
    block, stride, n_inner = x_words(gate)
    words = {
        G.GEMM: function(gemm_name(gate), HERE),
        G.X: address(read),
        G.X_BLOCK: block,
        G.X_STRIDE: stride,
        G.N_INNER: n_inner,
        G.PANELS: address(gate.data),
        G.PANEL_BYTES: gate.panel_bytes,
        G.N_PANELS: gate.n_panels,
        G.UP_GEMM: function(gemm_name(up), HERE),
        G.UP_PANELS: address(up.data),
        G.UP_PANEL_BYTES: up.panel_bytes,
        G.PAIR_GEMM: function(pair_gemm_name(gate), HERE) if gate_type == up_type == T.Q4_1 else 0,
        G.N_OUT: n_out,
        G.ACT: ACTS.index(act),
    }
    rows = poisoned(n, n_out)
    n_groups = -(-n_out // 32)
    to_rows = words | {G.OUT: address(rows), G.OUT_STRIDE: rows.strides[0]}
    run_unit("linear.units.glu_rows", to_rows, n_rows=n, per_unit=24, n_fixed=n_groups)
    g, u = ((values.astype(np.float64) @ unpack(p).astype(np.float64).T).astype(np.float32) for p in (gate, up))
    with np.errstate(over="ignore"):
        want = {"silu": silu, "gelu": gelu, "gelu_tanh": _gelu_tanh}[act](g) * u
    np.testing.assert_allclose(rows[:n], want, rtol=2e-5, atol=1e-5 * np.abs(want).max())
    if n_out % 32 == 0:
        records = zeros((3, n_groups, activation.N_ROWS), activation.ROW)
        to_records = words | {G.OUT: address(records), G.OUT_STRIDE: n_groups * activation.RECORD_BYTES}
        run_unit("linear.units.glu_records", to_records, n_rows=n, per_unit=24, n_fixed=n_groups)
        np.testing.assert_array_equal(
            activation.values(records, n, n_out), activation.values(activation.quantised(rows[:n]), n, n_out)
        )


def _gelu_tanh(x: F32) -> F32:
    y = np.sqrt(2 / np.pi) * (x.astype(np.float64) + 0.044715 * x.astype(np.float64) ** 3)
    return (0.5 * x * (1 + np.tanh(y))).astype(np.float32)


@pytest.mark.parametrize("name", BY_KIND)
def test_rows_out_of_panels_are_the_stored_values(name: str) -> None:
    n_in = 512 if BY_KIND[name] in KIND_OF else 45
    info, stored = tensor(BY_KIND[name], 50, n_in)
    panels = pack(info, stored)
    ids = np.array([49, 0, 17, 16, 17, 31, 5], np.int32)
    out = poisoned(len(ids), n_in)
    words = {
        E.KERNEL: function(row_name(panels), HERE),
        E.TABLE: address(panels.data),
        E.PANEL_BYTES: panels.panel_bytes,
        E.N_INNER: x_words(panels)[2],
        E.IDS_WORD: S.TOKEN,
        E.OUT: address(out),
        E.OUT_STRIDE: out.strides[0],
    }
    run_unit("linear.panel_rows.rows", words, n_rows=len(ids), per_unit=2, step_words={S.TOKEN: address(ids)})
    np.testing.assert_array_equal(out[: len(ids)], stored_values(BY_KIND[name], stored)[ids])
    assert np.isnan(out[len(ids) :]).all()


def test_padded_rows_is_the_next_count() -> None:
    assert [padded_rows(n) for n in range(1, 13)] == [1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12]
