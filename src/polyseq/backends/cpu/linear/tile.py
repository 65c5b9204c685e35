"""Some rows times some columns of a panel, all sums in registers: what the kernels of gemm.py are made of.

Enters: records of 8-bit rows (activation.py) and a panel (panel_kind.py). Leaves: the rows' sums over all groups, in
the order that gemm.py states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from polyseq.backends.cpu.ir.emit import F32, I8, I16, I32, Emit, Value, vec
from polyseq.backends.cpu.isa.isa import Isa
from polyseq.backends.cpu.linear.ahead import LINE, Asks
from polyseq.backends.cpu.panels.panel_kind import N_COLUMNS, STEPS, SUPER, PanelKind
from polyseq.backends.cpu.rows.activation import RECORD_BYTES, ROW_BYTES, SCALE, SUM, SUM_A, SUM_B


def codes(e: Emit, kind: PanelKind, isa: Isa, address: Value, step: int, lanes: int) -> Value:
    """The codes of a step: i32 lanes of 4 bytes, from the first of the columns at `address`."""
    low, *high = kind.planes
    words = vec(I32, lanes)
    value = _plane(e, kind, words, address, 0, low, step)
    if high:
        value = e.b.or_(value, _plane(e, kind, words, address, LINE * low, high[0], step, up=low))
    return isa.lookup(e, kind.table, value) if kind.table else value


def _plane(e: Emit, kind: PanelKind, words: Value, address: Value, at: int, bits: int, step: int, up: int = 0) -> Value:
    """`bits` bits of a step's codes from the plane that begins at `at`, moved up by `up` bits."""
    vector, shift = kind.place(bits, step)
    value = e.load(address, words, at + LINE * vector)
    if bits == 8:
        return value
    if shift > up:
        value = e.b.lshr(value, e.const(words, shift - up))
    elif shift < up:
        value = e.b.shl(value, e.const(words, up - shift))
    return e.b.and_(value, e.const(words, 0x01010101 * ((1 << bits) - 1 << up)))


def column_factors(
    e: Emit, kind: PanelKind, isa: Isa, group: Value, column: Value, at: int, part: int, wide: Value | None, lanes: int
) -> Value:
    """Scales (or minima) of a group from the field at `at`, for half `part`, as f32; `wide` is what they scale."""
    size = kind.scale_bytes
    address = e.add(group, e.mul(column, size))
    offset = at + part * N_COLUMNS * size
    if kind.scale == "f32":
        return e.load(address, vec(F32, lanes), offset)
    if kind.scale == "f16":
        return isa.f16_to_f32(e, e.load(address, vec(I16, lanes), offset))
    small = e.load(address, vec(I8, lanes), offset)
    extend = e.b.sext if kind.scale == "i8" else e.b.zext
    return e.b.fmul(e.b.sitofp(extend(small, vec(I32, lanes)), vec(F32, lanes)), wide)


def in_units(e: Emit, kind: PanelKind, d: Value) -> Value:
    """A super-block's d as f32, times the kind's unit."""
    return d if kind.unit == 1 else e.b.fmul(d, e.const(d.type, kind.unit))


T = TypeVar("T")
# d and -dmin of a super-block, where there are any
Factors = tuple[Value | None, Value | None]


class Tile:
    """Some rows times some columns of a panel, all sums in registers.

    Several registers of columns may lie side by side: each load of an input then serves all of them.
    """

    def __init__(
        self,
        e: Emit,
        kind: PanelKind,
        isa: Isa,
        n_rows: int,
        records: Value,
        i_block: Value,
        panel: Value,
        column: Value,  # first column
        n_wide: int,  # registers side by side
        asks: Asks,
    ) -> None:
        self.e, self.kind, self.isa, self.n_rows, self.n_wide = e, kind, isa, n_rows, n_wide
        # Opaque, else each load has an index of its own.
        self.rows = e.opaque(e.add(records, e.mul(i_block, ROW_BYTES * n_rows)))
        self.panel, self.asks = panel, asks
        self.columns = [e.add(column, isa.lanes * w) for w in range(n_wide)]
        self.floats = vec(F32, isa.lanes)

    @property
    def n_sums(self) -> int:
        """Register by register its rows' sums."""
        return self.n_wide * self.n_rows

    def factors(self, head: Value) -> list[Factors]:
        """Those of every register."""
        return [self._factors(self.e.add(head, self.e.mul(column, 2))) for column in self.columns]

    def _factors(self, at: Value) -> Factors:
        e, halves = self.e, vec(I16, self.isa.lanes)
        d = in_units(e, self.kind, self.isa.f16_to_f32(e, e.load(at, halves)))
        if not self.kind.minimum:
            return d, None
        return d, e.b.fneg(self.isa.f16_to_f32(e, e.load(at, halves, 2 * N_COLUMNS)))

    def group(self, g: Value, group: Value, acc: list[Value], factors: list[Factors]) -> list[Value]:
        """acc + the group's products."""
        e, kind = self.e, self.kind
        rows = e.add(self.rows, e.mul(g, RECORD_BYTES))
        self.asks(g, group)
        so_far: list[Value | None] = [None] * self.n_sums
        for part in range(kind.n_scales):
            dots = self._dots(rows, group, part)
            so_far = [
                y
                for w in range(self.n_wide)
                for y in self._scaled(rows, group, part, w, self._of(dots, w), self._of(so_far, w), factors[w])
            ]
        return [e.fma(x, self._row(rows, SCALE, i % self.n_rows), acc[i]) for i, x in enumerate(so_far)]

    def _of(self, sums: list[T], w: int) -> list[T]:
        """Register w's."""
        return sums[w * self.n_rows : (w + 1) * self.n_rows]

    def _scaled(
        self,
        rows: Value,
        group: Value,
        part: int,
        w: int,
        dots: list[Value],
        so_far: list[Value | None],
        factors: Factors,
    ) -> list[Value]:
        """so_far + (dot - offset * sum) * scale + sum * minimum, row by row, of one register and one scale's inputs."""
        e, kind, isa, column = self.e, self.kind, self.isa, self.columns[w]
        offset = kind.offset if kind.factor_bits < 8 else isa.byte_offset
        sum_at = SUM if kind.n_scales == 1 else (SUM_A, SUM_B)[part]
        scale = column_factors(e, kind, isa, group, column, kind.code_bytes, part, factors[0], isa.lanes)
        least = (
            column_factors(e, kind, isa, group, column, kind.min_at, part, factors[1], isa.lanes)
            if kind.minimum
            else None
        )
        out: list[Value] = []
        for r, (dot, y) in enumerate(zip(dots, so_far, strict=True)):
            x = e.b.sitofp(dot, self.floats)
            if offset:
                x = e.fma(self._row(rows, sum_at, r), e.const(self.floats, -offset), x)
            y = e.b.fmul(x, scale) if y is None else e.fma(x, scale, y)
            out.append(y if least is None else e.fma(self._row(rows, sum_at, r), least, y))
        return out

    def _dots(self, rows: Value, group: Value, part: int) -> list[Value]:
        """Integer dot products over one scale's inputs, register by register and row by row [lanes] i32."""
        e, kind, isa, n_rows = self.e, self.kind, self.isa, self.n_rows
        chunk, n_steps = isa.chunk(kind), STEPS // kind.n_scales
        firsts = [e.add(group, e.mul(column, 4)) for column in self.columns]
        sums = [_Dot(e, isa, isa.fold_every(kind.factor_bits), n_steps) for _ in range(self.n_sums)]
        for start in range(0, n_steps, chunk):
            some = [part * n_steps + i for i in range(start, min(start + chunk, n_steps))]
            if isa.in_order and start > 0:
                firsts = [e.opaque(first, [dot.so_far for dot in sums]) for first in firsts]
                rows = e.opaque(rows, [dot.so_far for dot in sums])
            weights = [
                [isa.prepare(e, codes(e, kind, isa, first, step, isa.lanes), kind.factor_bits) for first in firsts]
                for step in some
            ]
            for r in range(n_rows):
                if isa.in_order and self.n_wide > 1 and r > 0:
                    rows = e.opaque(rows, [dot.so_far for dot in sums[r - 1 :: n_rows]])
                for step, prepared in zip(some, weights, strict=True):
                    inputs = e.load_splat(rows, I32, ROW_BYTES * r + 4 * step, isa.lanes)
                    for dot, some_codes in zip(sums[r::n_rows], prepared, strict=True):
                        dot.add(some_codes, inputs)
        return [dot.so_far for dot in sums]

    def _row(self, rows: Value, at: int, r: int) -> Value:
        """A number of row r's record, in every lane."""
        return self.e.load_splat(rows, F32, ROW_BYTES * r + at, self.isa.lanes)


class _Dot:
    """One row's integer dot products with a register of columns, step by step."""

    def __init__(self, e: Emit, isa: Isa, fold_every: int, n_steps: int) -> None:
        self._e, self._isa, self._fold_every, self._n_steps = e, isa, fold_every, n_steps
        self._n, self._partial, self._total = 0, None, None

    @property
    def so_far(self) -> Value:
        """After all steps [lanes] i32; before, what there is."""
        return self._partial or self._total

    def add(self, weights: tuple[Value, ...], inputs: Value) -> None:
        """One more step."""
        self._n += 1
        self._partial = self._isa.add(self._e, self._partial, weights, inputs)
        if self._n % self._fold_every == 0 or self._n == self._n_steps:
            self._total = self._isa.fold(self._e, self._total, self._partial)
            self._partial = None


def tile_sums(tiles: list[Tile], n_groups: Value) -> list[list[Value]]:
    """For each register of each tile its rows' sums over all groups."""
    e, kind, n_rows, n_sums = tiles[0].e, tiles[0].kind, tiles[0].n_rows, tiles[0].n_sums

    def each(acc: list[Value], do: Callable[[int, Tile, list[Value]], list[Value]]) -> list[Value]:
        return [total for i, tile in enumerate(tiles) for total in do(i, tile, acc[i * n_sums : (i + 1) * n_sums])]

    start = [e.const(tiles[0].floats, 0.0)] * (n_sums * len(tiles))

    no_factors: list[Factors] = [(None, None)] * tiles[0].n_wide

    def plain(g: Value, acc: list[Value]) -> list[Value]:
        at = e.mul(g, kind.group_bytes)
        return each(acc, lambda _, tile, some: tile.group(g, e.add(tile.panel, at), some, no_factors))

    def super_block(i: Value, acc: list[Value]) -> list[Value]:
        at, first = e.mul(i, kind.head_bytes + SUPER * kind.group_bytes), e.mul(i, SUPER)
        factors = [tile.factors(e.add(tile.panel, at)) for tile in tiles]

        def one(g: Value, acc: list[Value]) -> list[Value]:
            in_panel = e.add(e.add(at, kind.head_bytes), e.mul(g, kind.group_bytes))
            return each(
                acc,
                lambda t, tile, some: tile.group(e.add(first, g), e.add(tile.panel, in_panel), some, factors[t]),
            )

        return e.loop(SUPER, acc, one)

    if kind.in_super_blocks:
        acc = e.loop(e.b.lshr(n_groups, e.i64(3)), start, super_block)
    else:
        acc = e.loop(n_groups, start, plain)
    return [acc[i : i + n_rows] for i in range(0, len(acc), n_rows)]
