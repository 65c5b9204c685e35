"""Units of linear ops: many rows times many panels, by calls to the micro-kernel named in the record.

Enters: a record (linear_words.py), rows or records of rows, panels. Leaves: f32 rows, or, of a gated pair, records. A
unit is some columns of some rows. Its panels stay in the first-level cache while all its rows pass by, 12 at a time;
its rows' records stay in the second-level cache while its panels pass by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from polyseq.backends.cpu.activation import N_ROWS, RECORD_BYTES
from polyseq.backends.cpu.acts import ACTIVATIONS
from polyseq.backends.cpu.emit import Emit, F32x16, Value, intrinsic_of
from polyseq.backends.cpu.features import Features
from polyseq.backends.cpu.linear_words import ACTS, G, L
from polyseq.backends.cpu.memory import call_8, get_f32, get_i64, put_f32
from polyseq.backends.cpu.numba_build import part
from polyseq.backends.cpu.panel_kind import GROUP, N_COLUMNS
from polyseq.backends.cpu.quantise import quantise_32
from polyseq.backends.cpu.records import R

_COLUMN_BYTES = 4 * N_COLUMNS
_TILE_STRIDE = 4 * GROUP  # a row of 32 columns in scratch


@part
def _padded(n: int) -> int:
    """row_blocks.padded_rows, for compiled code."""
    if n <= 4:
        return n
    return 6 if n <= 6 else 8 if n <= 8 else 12


@part
def _n_rows(record: int, step: int) -> int:
    return get_i64(step, get_i64(record, R.COUNT_WORD))


def _add_bias(e: Emit, out: Value, stride: Value, n_rows: Value, bias: Value, old: Value) -> None:
    """Changes n_rows x 16 numbers: bias, plus what is there where `old` is 1."""
    add = e.load(bias, F32x16)
    nothing = e.const(F32x16, 0.0)

    def row(r: Value) -> None:
        place = e.add(out, e.mul(r, stride))
        before = e.b.select(e.b.icmp_signed("!=", old, e.i64(0)), e.load(place, F32x16), nothing)
        e.store(e.b.fadd(before, add), place)

    e.each(n_rows, row)


add_bias = intrinsic_of(_add_bias, 5)


@part
def _panel(record: int, panel: int, x: int, n: int, out: int, stride: int, accumulate: int) -> None:
    """n rows times one panel, into 16 columns at `out`."""
    bias = get_i64(record, L.BIAS)
    if bias != 0:
        add_bias(out, stride, n, bias + panel * _COLUMN_BYTES, accumulate)
        accumulate = 1
    weights = get_i64(record, L.PANELS) + panel * get_i64(record, L.PANEL_BYTES)
    gemm, n_inner, x_stride = get_i64(record, L.GEMM), get_i64(record, L.N_INNER), get_i64(record, L.X_STRIDE)
    call_8(gemm, n, x, weights, out, stride, n_inner, accumulate, x_stride)


@part
def _last_panel(record: int, panel: int, x: int, n: int, out: int, scratch: int) -> None:
    """The same where fewer than 16 columns are left: what lies behind them is the next row's."""
    stride, accumulate = get_i64(record, L.OUT_STRIDE), get_i64(record, L.ACCUMULATE)
    n_columns = get_i64(record, L.N_OUT) - panel * N_COLUMNS
    _panel(record, panel, x, _padded(n), scratch, _COLUMN_BYTES, 0)
    for r in range(n):
        for c in range(n_columns):
            value = get_f32(scratch, r * N_COLUMNS + c)
            if accumulate != 0:
                value += get_f32(out + r * stride, c)
            put_f32(out + r * stride, c, value)


def rows(features: Features) -> Callable[..., None]:
    """The unit "linear.rows": words `L`."""

    def unit(record: int, step: int, u0: int, u1: int, scratch: int) -> None:
        n_rows, n_parts, per_unit = _n_rows(record, step), get_i64(record, R.N_FIXED), get_i64(record, R.PER_UNIT)
        n_panels, width = get_i64(record, L.N_PANELS), get_i64(record, L.PANELS_PER_UNIT)
        n_whole = get_i64(record, L.N_OUT) // N_COLUMNS
        stride, accumulate = get_i64(record, L.OUT_STRIDE), get_i64(record, L.ACCUMULATE)
        for u in range(u0, u1):
            some, columns = u // n_parts, u % n_parts
            start, stop = some * per_unit, min(some * per_unit + per_unit, n_rows)
            for panel in range(columns * width, min(columns * width + width, n_panels)):
                for row in range(start, stop, N_ROWS):
                    n = min(N_ROWS, stop - row)
                    x = get_i64(record, L.X) + row // N_ROWS * get_i64(record, L.X_BLOCK)
                    out = get_i64(record, L.OUT) + row * stride + panel * _COLUMN_BYTES
                    if panel < n_whole:
                        _panel(record, panel, x, _padded(n), out, stride, accumulate)
                    else:
                        _last_panel(record, panel, x, n, out, scratch)

    return unit


# --- gate and up: 32 columns of both in scratch, then one group of a record


def _products(e: Emit, name: str, gate: Value, up: Value) -> tuple[Value, Value]:
    """act(gate) * up of 32 columns, as two registers."""

    def product(at: int) -> Value:
        return e.b.fmul(ACTIVATIONS[name](e, e.load(gate, F32x16, at)), e.load(up, F32x16, at))

    return product(0), product(_COLUMN_BYTES)


def _glu_row(e: Emit, act: Value, gate: Value, up: Value, out: Value) -> None:
    """Changes 32 numbers at `out`: act(gate) * up."""

    def put(i: int) -> None:
        first, last = _products(e, ACTS[i], gate, up)
        e.store(first, out)
        e.store(last, out, _COLUMN_BYTES)

    e.match(act, range(len(ACTS)), put)


glu_row = intrinsic_of(_glu_row, 4)


@part
def _glu_tile(record: int, group: int, x: int, n: int, gate: int, up: int) -> None:
    """n rows times 32 columns of gate and of up; a panel that is not there counts as zeros."""
    n_inner, x_stride = get_i64(record, G.N_INNER), get_i64(record, G.X_STRIDE)
    for half in range(2):
        panel, at = 2 * group + half, half * _COLUMN_BYTES
        if panel < get_i64(record, G.N_PANELS):
            weights = get_i64(record, G.PANELS) + panel * get_i64(record, G.PANEL_BYTES)
            call_8(get_i64(record, G.GEMM), n, x, weights, gate + at, _TILE_STRIDE, n_inner, 0, x_stride)
            weights = get_i64(record, G.UP_PANELS) + panel * get_i64(record, G.UP_PANEL_BYTES)
            call_8(get_i64(record, G.UP_GEMM), n, x, weights, up + at, _TILE_STRIDE, n_inner, 0, x_stride)
        else:
            for r in range(n):
                for c in range(N_COLUMNS):
                    put_f32(gate + at + r * _TILE_STRIDE, c, 0.0)
                    put_f32(up + at + r * _TILE_STRIDE, c, 0.0)


def _glu(*, into_records: bool) -> Callable[[Features], Callable[..., None]]:
    """The units "linear.glu_records" and "linear.glu_rows": words `G`."""

    def factory(features: Features) -> Callable[..., None]:
        def unit(record: int, step: int, u0: int, u1: int, scratch: int) -> None:
            n_rows, n_groups, per_unit = _n_rows(record, step), get_i64(record, R.N_FIXED), get_i64(record, R.PER_UNIT)
            gate, up = scratch, scratch + N_ROWS * _TILE_STRIDE
            act, stride, n_out = get_i64(record, G.ACT), get_i64(record, G.OUT_STRIDE), get_i64(record, G.N_OUT)
            for u in range(u0, u1):
                some, group = u // n_groups, u % n_groups
                start, stop = some * per_unit, min(some * per_unit + per_unit, n_rows)
                for row in range(start, stop, N_ROWS):
                    n = min(N_ROWS, stop - row)
                    x = get_i64(record, G.X) + row // N_ROWS * get_i64(record, G.X_BLOCK)
                    _glu_tile(record, group, x, _padded(n), gate, up)
                    for r in range(n):
                        g, w = gate + r * _TILE_STRIDE, up + r * _TILE_STRIDE
                        glu_row(act, g, w, g)
                        if into_records:
                            out = get_i64(record, G.OUT) + row // N_ROWS * stride + group * RECORD_BYTES
                            quantise_32(g, out, r)
                        else:
                            out = get_i64(record, G.OUT) + (row + r) * stride + group * _TILE_STRIDE
                            for c in range(min(GROUP, n_out - group * GROUP)):
                                put_f32(out, c, get_f32(g, c))

        return unit

    return factory


KERNELS: Mapping[str, Callable[[Features], Callable[..., None]]] = MappingProxyType(
    {"rows": rows, "glu_records": _glu(into_records=True), "glu_rows": _glu(into_records=False)}
)
