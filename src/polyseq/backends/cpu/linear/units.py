"""Units of linear ops: many rows times many panels, by calls to the micro-kernel named in the record.

Enters: a record (linear/words.py), rows or records of rows, panels. Leaves: f32 rows, or, of a gated pair, records. A
unit is some columns of some rows. Its panels stay in the first-level cache while all its rows pass by, 12 at a time;
its rows' records stay in the second-level cache while its panels pass by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from polyseq.backends.cpu.compiler.assemble import object_code
from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.acts import ACTIVATIONS
from polyseq.backends.cpu.ir.emit import F32, Body, Emit, F32x16, Value
from polyseq.backends.cpu.linear.gemm import MOST_PAIR_ROWS
from polyseq.backends.cpu.linear.row_blocks import ROW_COUNTS
from polyseq.backends.cpu.linear.words import ACTS, G, L
from polyseq.backends.cpu.panels.panel_kind import GROUP, N_COLUMNS
from polyseq.backends.cpu.rows.activation import N_ROWS, RECORD_BYTES
from polyseq.backends.cpu.rows.quantise import quantise_at
from polyseq.backends.cpu.rows.units import Unit
from polyseq.backends.cpu.words.records import R

_COLUMN_BYTES = 4 * N_COLUMNS
_TILE_STRIDE = 4 * GROUP  # from row to row of 32 columns in scratch

# do(first row, rows, column part): one unit
Part = Callable[[Value, Value, Value], None]


def over_units(e: Emit, unit: Unit, u0: Value, u1: Value, do: Part) -> None:
    """Units u0 .. u1 - 1: all column parts of the first rows, then of the next."""
    n_rows, n_parts, per_unit = unit.step_word(unit.word(R.COUNT_WORD)), unit.word(R.N_FIXED), unit.word(R.PER_UNIT)

    def one(i: Value) -> None:
        u = e.add(u0, i)
        start = e.b.mul(e.b.udiv(u, n_parts), per_unit)
        do(start, e.least(per_unit, e.b.sub(n_rows, start)), e.b.urem(u, n_parts))

    e.each(e.b.sub(u1, u0), one)


def over_blocks(e: Emit, start: Value, n: Value, do: Callable[[Value, Value], None]) -> None:
    """do(first row, rows) for rows start .. start + n - 1, 12 at a time; start is a multiple of 12."""

    def one(i: Value) -> None:
        before = e.mul(i, N_ROWS)
        do(e.add(start, before), e.least(e.i64(N_ROWS), e.b.sub(n, before)))

    e.each(e.b.udiv(e.add(n, N_ROWS - 1), e.i64(N_ROWS)), one)


def padded(e: Emit, n: Value) -> Value:
    """row_blocks.padded_rows."""
    out = e.i64(N_ROWS)
    for count in ROW_COUNTS[1:]:
        out = e.b.select(e.b.icmp_signed("<=", n, e.i64(count)), e.i64(count), out)
    return out


def x_block(e: Emit, unit: Unit, words: type[L] | type[G], row: Value) -> Value:
    """Where the block of 12 rows that begins with `row` lies."""
    return e.add(unit.word(words.X), e.b.mul(e.b.udiv(row, e.i64(N_ROWS)), unit.word(words.X_BLOCK)))


# --- rows out


def _rows(e: Emit, record: Value, step: Value, u0: Value, u1: Value, scratch: Value) -> None:
    """The unit "linear.units.rows": words `L`."""
    unit = Unit(e, record, step, scratch)
    width, n_whole = unit.word(L.PANELS_PER_UNIT), e.b.lshr(unit.word(L.N_OUT), e.i64(4))

    def part_of_columns(start: Value, n: Value, columns: Value) -> None:
        first = e.b.mul(columns, width)
        stop = e.least(e.add(first, width), unit.word(L.N_PANELS))
        n_pairs = e.b.lshr(e.b.sub(e.least(stop, n_whole), first), e.i64(1))
        n_pairs = e.b.select(_goes_by_pairs(e, unit.word(L.PAIR_GEMM), n), n_pairs, e.i64(0))
        e.each(n_pairs, lambda j: _pair(e, unit, e.add(first, j), n_pairs, start, n))
        left = e.add(first, e.mul(n_pairs, 2))

        def panel(j: Value) -> None:
            i = e.add(left, j)
            is_whole = e.b.icmp_signed("<", i, n_whole)
            e.when(is_whole, lambda: over_blocks(e, start, n, partial(_whole_panel, e, unit, i)))
            e.when(e.b.not_(is_whole), lambda: over_blocks(e, start, n, partial(_last_panel, e, unit, i)))

        e.each(e.b.sub(stop, left), panel)
        unit.go_on(columns, start, n)

    over_units(e, unit, u0, u1, part_of_columns)


def _pair(e: Emit, unit: Unit, panel: Value, far: Value, row: Value, n: Value) -> None:
    """Changes 16 columns of few rows of a panel, and of the one `far` panels on."""
    far_panel, far_out = e.b.mul(far, unit.word(L.PANEL_BYTES)), e.mul(far, _COLUMN_BYTES)
    out, add = _begun(e, unit, panel, row, n)
    _begun(e, unit, e.add(panel, far), row, n)
    weights, x = _weights_and_x(e, unit, panel, row)
    stride, n_inner = unit.word(L.OUT_STRIDE), unit.word(L.N_INNER)
    e.call(unit.word(L.PAIR_GEMM), n, x, weights, out, stride, n_inner, add, far_panel, far_out)


def _weights_and_x(e: Emit, unit: Unit, panel: Value, row: Value) -> tuple[Value, Value]:
    """Where a panel begins, and the block of 12 rows that begins with `row`."""
    return e.add(unit.word(L.PANELS), e.b.mul(panel, unit.word(L.PANEL_BYTES))), x_block(e, unit, L, row)


def _product(e: Emit, unit: Unit, panel: Value, row: Value, n: Value, out: Value, stride: Value, add: Value) -> None:
    """Changes 16 columns of n rows at `out`: rows from `row` on times a panel, plus what is there if `add` is 1."""
    weights, x = _weights_and_x(e, unit, panel, row)
    n_inner, x_stride = unit.word(L.N_INNER), unit.word(L.X_STRIDE)
    e.call(unit.word(L.GEMM), padded(e, n), x, weights, out, stride, n_inner, add, x_stride)


def _whole_panel(e: Emit, unit: Unit, panel: Value, row: Value, n: Value) -> None:
    """Changes 16 columns of rows row .. row + n - 1."""
    out, add = _begun(e, unit, panel, row, n)
    _product(e, unit, panel, row, n, out, unit.word(L.OUT_STRIDE), add)


def _begun(e: Emit, unit: Unit, panel: Value, row: Value, n: Value) -> tuple[Value, Value]:
    """Where 16 columns of n rows go, the bias already there if there is one; and whether products are added to that."""
    out = e.add(unit.row(L.OUT, L.OUT_STRIDE, row), e.mul(panel, _COLUMN_BYTES))
    stride, accumulate, bias = unit.word(L.OUT_STRIDE), unit.word(L.ACCUMULATE), unit.word(L.BIAS)
    has_bias = e.b.icmp_signed("!=", bias, e.i64(0))

    def start_from_bias() -> None:
        values, zero = e.load(bias, F32x16, e.mul(panel, _COLUMN_BYTES)), e.const(F32x16, 0.0)

        def one(r: Value) -> None:
            place = e.add(out, e.b.mul(r, stride))
            before = e.b.select(_is_on(e, accumulate), e.load(place, F32x16), zero)
            e.store(e.b.fadd(before, values), place)

        e.each(n, one)

    e.when(has_bias, start_from_bias)
    return out, e.b.select(has_bias, e.i64(1), accumulate)


def _last_panel(e: Emit, unit: Unit, panel: Value, row: Value, n: Value) -> None:
    """The same where fewer than 16 columns are left: what lies behind them is the next row's."""
    first = e.mul(panel, N_COLUMNS)
    n_columns, bias = e.b.sub(unit.word(L.N_OUT), first), unit.word(L.BIAS)
    _product(e, unit, panel, row, n, unit.scratch, e.i64(_COLUMN_BYTES), e.i64(0))

    def one_row(r: Value) -> None:
        source = e.add(unit.scratch, e.mul(r, _COLUMN_BYTES))
        out = e.add(unit.row(L.OUT, L.OUT_STRIDE, e.add(row, r)), e.mul(first, 4))

        def one(c: Value) -> None:
            at = e.mul(c, 4)
            place = e.add(out, at)
            add = load_if(e, _is_on(e, unit.word(L.ACCUMULATE)), place)
            more = load_if(e, e.b.icmp_signed("!=", bias, e.i64(0)), e.add(e.add(bias, e.mul(first, 4)), at))
            e.store(e.b.fadd(e.load(source, F32, at), e.b.fadd(add, more)), place)

        e.each(n_columns, one)

    e.each(n, one_row)


def _goes_by_pairs(e: Emit, pair_gemm: Value, n: Value) -> Value:
    """Whether n rows are few enough for the kernel for two panels, if there is one."""
    return e.b.and_(_is_on(e, pair_gemm), e.b.icmp_signed("<=", n, e.i64(MOST_PAIR_ROWS)))


def _is_on(e: Emit, word: Value) -> Value:
    return e.b.icmp_signed("!=", word, e.i64(0))


def load_if(e: Emit, condition: Value, address: Value) -> Value:
    """The f32 at address, read only where the condition holds; else 0."""
    count = e.b.select(condition, e.i64(1), e.i64(0))
    return e.loop(count, [e.const(F32, 0.0)], lambda _, before: [e.load(address, F32)])[0]


# --- gate and up: 32 columns of both in scratch, then one group of a record, or of f32 rows


def _glu(into_records: bool, e: Emit, record: Value, step: Value, u0: Value, u1: Value, scratch: Value) -> None:
    """The units "linear.units.glu_records" and "linear.units.glu_rows": words `G`."""
    unit = Unit(e, record, step, scratch)
    gate, up = scratch, e.add(scratch, N_ROWS * _TILE_STRIDE)

    def some_rows(group: Value, row: Value, n: Value) -> None:
        _glu_tile(e, unit, group, row, n, gate, up)
        _glu_products(e, unit, n, gate, up)
        if into_records:
            block = e.b.mul(e.b.udiv(row, e.i64(N_ROWS)), unit.word(G.OUT_STRIDE))
            out = e.add(e.add(unit.word(G.OUT), block), e.mul(group, RECORD_BYTES))
            e.each(n, lambda r: quantise_at(e, e.add(gate, e.mul(r, _TILE_STRIDE)), out, r))
        else:
            _glu_rows_out(e, unit, group, row, n, gate)

    over_units(
        e, unit, u0, u1, lambda start, n, group: over_blocks(e, start, n, lambda row, m: some_rows(group, row, m))
    )


def _glu_tile(e: Emit, unit: Unit, group: Value, first: Value, n: Value, gate: Value, up: Value) -> None:
    """Changes scratch: n rows times 32 columns of gate and of up; a panel that is not there counts as zeros."""
    x, n_inner, x_stride = x_block(e, unit, G, first), unit.word(G.N_INNER), unit.word(G.X_STRIDE)
    pair_gemm = unit.word(G.PAIR_GEMM)
    is_pair = _goes_by_pairs(e, pair_gemm, n)
    far = e.b.sub(unit.word(G.UP_PANELS), unit.word(G.PANELS))
    sides = ((G.GEMM, G.PANELS, G.PANEL_BYTES, gate), (G.UP_GEMM, G.UP_PANELS, G.UP_PANEL_BYTES, up))

    def half(i: Value) -> None:
        panel, at = e.add(e.mul(group, 2), i), e.mul(i, _COLUMN_BYTES)
        is_there = e.b.icmp_signed("<", panel, unit.word(G.N_PANELS))

        def pair() -> None:
            weights = e.add(unit.word(G.PANELS), e.b.mul(panel, unit.word(G.PANEL_BYTES)))
            out, stride = e.add(gate, at), e.i64(_TILE_STRIDE)
            e.call(pair_gemm, n, x, weights, out, stride, n_inner, e.i64(0), far, e.b.sub(up, gate))

        def singles() -> None:
            for gemm, panels, panel_bytes, tile in sides:
                weights = e.add(unit.word(panels), e.b.mul(panel, unit.word(panel_bytes)))
                out, stride = e.add(tile, at), e.i64(_TILE_STRIDE)
                e.call(unit.word(gemm), padded(e, n), x, weights, out, stride, n_inner, e.i64(0), x_stride)

        def zeros() -> None:
            def row(r: Value) -> None:
                for tile in (gate, up):
                    e.store(e.const(F32x16, 0.0), e.add(tile, at), e.mul(r, _TILE_STRIDE))

            e.each(n, row)

        e.when(e.b.and_(is_there, is_pair), pair)
        e.when(e.b.and_(is_there, e.b.not_(is_pair)), singles)
        e.when(e.b.not_(is_there), zeros)

    e.each(2, half)


def _glu_products(e: Emit, unit: Unit, n: Value, gate: Value, up: Value) -> None:
    """Changes gate: act(gate) * up."""

    def with_act(i: int) -> None:
        def sixteen(j: Value) -> None:
            at = e.mul(j, _COLUMN_BYTES)
            e.store(e.b.fmul(ACTIVATIONS[ACTS[i]](e, e.load(gate, F32x16, at)), e.load(up, F32x16, at)), gate, at)

        e.each(e.mul(n, 2), sixteen)

    e.match(unit.word(G.ACT), range(len(ACTS)), with_act)


def _glu_rows_out(e: Emit, unit: Unit, group: Value, row: Value, n: Value, gate: Value) -> None:
    """Changes 32 columns (or what is left) of n rows."""
    n_columns = e.least(e.i64(GROUP), e.b.sub(unit.word(G.N_OUT), e.mul(group, GROUP)))

    def one(r: Value) -> None:
        source = e.add(gate, e.mul(r, _TILE_STRIDE))
        out = e.add(unit.row(G.OUT, G.OUT_STRIDE, e.add(row, r)), e.mul(group, _TILE_STRIDE))
        e.each(n_columns, lambda c: e.store(e.load(source, F32, e.mul(c, 4)), out, e.mul(c, 4)))

    e.each(n, one)


def _compiled(name: str, body: Body, features: Features) -> ObjectCode:
    return object_code(body, 5, f"linear_{name}_{features.isa.name}", features)


_UNITS: Mapping[str, Body] = MappingProxyType(
    {"rows": _rows, "glu_records": partial(_glu, True), "glu_rows": partial(_glu, False)}
)
KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType(
    {name: partial(_compiled, name, body) for name, body in _UNITS.items()}
)
