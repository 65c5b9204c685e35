"""Some rows times some columns of a panel, all sums in registers: what the kernels of gemm.py are made of.

Enters: records of 8-bit rows (activation.py) and a panel (panel_kind.py). Leaves: the rows' sums over all groups, in
the order that gemm.py states.
"""

from __future__ import annotations

from collections.abc import Callable

from polyseq.backends.cpu.ir.emit import F32, I8, I16, I32, Emit, Value, vec
from polyseq.backends.cpu.isa.isa import Isa
from polyseq.backends.cpu.linear.ahead import LINE, Asks
from polyseq.backends.cpu.panels.panel_kind import N_COLUMNS, STEPS, SUPER, PanelKind
from polyseq.backends.cpu.rows.activation import RECORD_BYTES, SCALE, SUM, SUM_A, SUM_B


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


class Tile:
    """Some rows times some columns of a panel, all sums in registers."""

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
        asks: Asks,
    ) -> None:
        self.e, self.kind, self.isa, self.n_rows = e, kind, isa, n_rows
        self.q = e.add(records, e.mul(i_block, 32 * n_rows))
        self.s = e.opaque(e.add(records, e.mul(i_block, 4 * n_rows)))  # else every load of s gets an index of its own
        self.panel, self.column, self.asks = panel, column, asks
        self.words, self.floats = vec(I32, isa.lanes), vec(F32, isa.lanes)

    def factors(self, head: Value) -> tuple[Value, Value | None]:
        """d and -dmin of a super-block."""
        e, halves = self.e, vec(I16, self.isa.lanes)
        at = e.add(head, e.mul(self.column, 2))
        d = in_units(e, self.kind, self.isa.f16_to_f32(e, e.load(at, halves)))
        if not self.kind.minimum:
            return d, None
        return d, e.b.fneg(self.isa.f16_to_f32(e, e.load(at, halves, 2 * N_COLUMNS)))

    def group(self, g: Value, group: Value, acc: list[Value], d: Value | None, dmin: Value | None) -> list[Value]:
        """acc + the group's products."""
        e, kind = self.e, self.kind
        record = e.mul(g, RECORD_BYTES)
        q, s = e.add(self.q, record), e.add(self.s, record)
        self.asks(g, group)
        so_far: list[Value | None] = [None] * self.n_rows
        for part in range(kind.n_scales):
            so_far = self._part(q, s, group, part, so_far, d, dmin)
        scaled = [e.fma(x, self._row(s, SCALE, r), acc[r]) for r, x in enumerate(so_far)]
        return scaled

    def _part(
        self,
        q: Value,
        s: Value,
        group: Value,
        part: int,
        so_far: list[Value | None],
        d: Value | None,
        dmin: Value | None,
    ) -> list[Value | None]:
        """so_far + (dot - offset * sum) * scale + sum * minimum, over the inputs of one scale."""
        e, kind, isa = self.e, self.kind, self.isa
        n_steps = STEPS // kind.n_scales
        dots = self._dots(q, group, range(part * n_steps, (part + 1) * n_steps))
        offset = kind.offset if kind.factor_bits < 8 else isa.byte_offset
        sum_at = SUM if kind.n_scales == 1 else (SUM_A, SUM_B)[part]
        scale = column_factors(e, kind, isa, group, self.column, kind.code_bytes, part, d, isa.lanes)
        least = (
            column_factors(e, kind, isa, group, self.column, kind.min_at, part, dmin, isa.lanes)
            if kind.minimum
            else None
        )
        out: list[Value | None] = []
        for r, dot in enumerate(dots):
            x = e.b.sitofp(dot, self.floats)
            if offset:
                x = e.fma(self._row(s, sum_at, r), e.const(self.floats, -offset), x)
            y = so_far[r]
            y = e.b.fmul(x, scale) if y is None else e.fma(x, scale, y)
            out.append(y if least is None else e.fma(self._row(s, sum_at, r), least, y))
        return out

    def _dots(self, q: Value, group: Value, steps: range) -> list[Value]:
        """Integer dot products over these steps, per row [columns] i32."""
        e, kind, isa = self.e, self.kind, self.isa
        chunk, fold_every = isa.chunk(kind), isa.fold_every(kind.factor_bits)
        first = e.add(group, e.mul(self.column, 4))
        partial_sums: list[Value | None] = [None] * self.n_rows
        totals: list[Value | None] = [None] * self.n_rows
        for start in range(0, len(steps), chunk):
            if isa.in_order and start > 0:
                so_far = [p or t for p, t in zip(partial_sums, totals, strict=True)]
                first, q = e.opaque(first, so_far), e.opaque(q, so_far)
            some = steps[start : start + chunk]
            bits = kind.factor_bits
            weights = [isa.prepare(e, codes(e, kind, isa, first, step, isa.lanes), bits) for step in some]
            for r in range(self.n_rows):
                for i, step in enumerate(some, start + 1):
                    inputs = e.load_splat(q, I32, 32 * r + 4 * step, isa.lanes)
                    partial_sums[r] = isa.add(e, partial_sums[r], weights[i - start - 1], inputs)
                    if i % fold_every == 0 or i == len(steps):
                        totals[r] = isa.fold(e, totals[r], partial_sums[r])
                        partial_sums[r] = None
        return totals

    def _row(self, s: Value, at: int, r: int) -> Value:
        """A number of row r's record, in every lane."""
        return self.e.load_splat(s, F32, at + 4 * r, self.isa.lanes)


def tile_sums(tiles: list[Tile], n_groups: Value) -> list[list[Value]]:
    """For each tile its rows' sums over all groups."""
    e, kind, n_rows = tiles[0].e, tiles[0].kind, tiles[0].n_rows

    def of(acc: list[Value], i: int) -> list[Value]:
        return acc[i * n_rows : (i + 1) * n_rows]

    def each(acc: list[Value], do: Callable[[int, Tile, list[Value]], list[Value]]) -> list[Value]:
        return [total for i, tile in enumerate(tiles) for total in do(i, tile, of(acc, i))]

    start = [e.const(tiles[0].floats, 0.0)] * (n_rows * len(tiles))

    def plain(g: Value, acc: list[Value]) -> list[Value]:
        at = e.mul(g, kind.group_bytes)
        return each(acc, lambda _, tile, some: tile.group(g, e.add(tile.panel, at), some, None, None))

    def super_block(i: Value, acc: list[Value]) -> list[Value]:
        at, first = e.mul(i, kind.head_bytes + SUPER * kind.group_bytes), e.mul(i, SUPER)
        factors = [tile.factors(e.add(tile.panel, at)) for tile in tiles]

        def one(g: Value, acc: list[Value]) -> list[Value]:
            in_panel = e.add(e.add(at, kind.head_bytes), e.mul(g, kind.group_bytes))
            return each(
                acc,
                lambda t, tile, some: tile.group(e.add(first, g), e.add(tile.panel, in_panel), some, *factors[t]),
            )

        return e.loop(SUPER, acc, one)

    if kind.in_super_blocks:
        acc = e.loop(e.b.lshr(n_groups, e.i64(3)), start, super_block)
    else:
        acc = e.loop(n_groups, start, plain)
    return [of(acc, i) for i in range(len(tiles))]
