"""The linear kernels for weights in codes: up to 12 rows times one panel of 16 columns.

Enters: records of 8-bit rows (activation.py) and a panel (panel_kind.py). Leaves: out[row][16 columns] f32, at any
distance from row to row. Per kind one function, gemm.<kind> (int64 each):

    void gemm(n_rows, records, panel, out, out_stride, n_groups, accumulate, 0)

    for r in range(n_rows):                                   # 1, 2, 3, 4, 6, 8 or 12
        acc = zeros(16)
        for g in range(n_groups):
            dot = codes[g] @ q[g, r]                          # integers, exact
            acc += ((dot - offset * sum[g, r]) * scale[g] + sum[g, r] * minimum[g]) * s[g, r]
        out[r] = acc + (out[r] if accumulate else 0)

Where a group has two scales, the bracket is the sum over both halves. Every row count and every instruction set adds in
this order, so a row has the same bits whatever rows it is computed with. Method: 12 rows share each load of the panel,
whose bytes are the bottleneck with few rows; software asks for them 2 KB ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from polyseq.backends.cpu.compiler.assemble import object_code
from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.emit import F32, I8, I16, I32, Body, Emit, Value, vec
from polyseq.backends.cpu.isa.isa import Isa
from polyseq.backends.cpu.isa.sets import isa_of
from polyseq.backends.cpu.linear.row_blocks import N_BLOCK, ROW_COUNTS
from polyseq.backends.cpu.panels.panel_kind import KINDS, N_COLUMNS, STEPS, SUPER, PanelKind
from polyseq.backends.cpu.rows.activation import RECORD_BYTES, SCALE, SUM, SUM_A, SUM_B

PREFETCH_AHEAD = 2048
LINE = 64


def body_of(kind: PanelKind, isa: Isa) -> Body:
    """Pure. The kernel for one kind on one instruction set."""
    most = isa.rows_at_once(kind)

    def gemm(
        e: Emit,
        n_rows: Value,
        records: Value,
        panel: Value,
        out: Value,
        out_stride: Value,
        n_groups: Value,
        accumulate: Value,
        _: Value,
    ) -> None:
        def rows(n_block: int) -> None:
            """All rows, n_block at a time, each block for all columns."""

            def block(i: Value, columns: Value) -> None:
                tile = _Tile(e, kind, isa, n_block, records, i, panel, columns)
                sums = tile.sums(n_groups)
                first = e.add(e.add(out, e.mul(e.mul(i, n_block), out_stride)), e.mul(columns, 4))
                store_rows(e, sums, first, out_stride, accumulate)

            each_block(e, isa.lanes, None if most == N_BLOCK else e.b.udiv(n_rows, e.i64(n_block)), block)

        e.match(n_rows, counts_by_block(most), rows)

    return gemm


def codes(e: Emit, kind: PanelKind, isa: Isa, address: Value, step: int, lanes: int) -> Value:
    """The codes of a step: i32 lanes of 4 bytes, from the first of the columns at `address`."""
    low, *high = kind.planes
    words = vec(I32, lanes)
    value = _plane(e, words, address, 0, low, step)
    if high:
        value = e.b.or_(value, _plane(e, words, address, LINE * low, high[0], step, up=low))
    return isa.lookup(e, kind.table, value) if kind.table else value


def _plane(e: Emit, words: Value, address: Value, at: int, bits: int, step: int, up: int = 0) -> Value:
    """`bits` bits of a step's codes from the plane that begins at `at`, moved up by `up` bits."""
    if bits == 8:
        return e.load(address, words, at + LINE * step)
    vector, shift = {4: (step % 4, step // 4 * 4), 2: (step // 4, step % 4 * 2), 1: (0, step)}[bits]
    value = e.load(address, words, at + LINE * vector)
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


class _Tile:
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
    ) -> None:
        self.e, self.kind, self.isa, self.n_rows = e, kind, isa, n_rows
        self.q = e.add(records, e.mul(i_block, 32 * n_rows))
        self.s = e.opaque(e.add(records, e.mul(i_block, 4 * n_rows)))  # else every load of s gets an index of its own
        self.panel, self.column = panel, column
        self.words, self.floats = vec(I32, isa.lanes), vec(F32, isa.lanes)

    def sums(self, n_groups: Value) -> list[Value]:
        """The rows' sums over all groups."""
        e, kind = self.e, self.kind
        start = [e.const(self.floats, 0.0)] * self.n_rows
        if not kind.in_super_blocks:
            return e.loop(
                n_groups,
                start,
                lambda g, acc: self._group(g, e.add(self.panel, e.mul(g, kind.group_bytes)), acc, None, None),
            )

        def super_block(i: Value, acc: list[Value]) -> list[Value]:
            head = e.add(self.panel, e.mul(i, kind.head_bytes + SUPER * kind.group_bytes))
            d_at = e.add(head, e.mul(self.column, 2))
            halves = vec(I16, self.isa.lanes)
            d = self.isa.f16_to_f32(e, e.load(d_at, halves))
            dmin = e.b.fneg(self.isa.f16_to_f32(e, e.load(d_at, halves, 2 * N_COLUMNS))) if kind.minimum else None
            first, groups = e.mul(i, SUPER), e.add(head, kind.head_bytes)
            return e.loop(
                SUPER,
                acc,
                lambda g, acc: self._group(e.add(first, g), e.add(groups, e.mul(g, kind.group_bytes)), acc, d, dmin),
            )

        return e.loop(e.b.lshr(n_groups, e.i64(3)), start, super_block)

    def _group(self, g: Value, group: Value, acc: list[Value], d: Value | None, dmin: Value | None) -> list[Value]:
        """acc + the group's products."""
        e, kind = self.e, self.kind
        record = e.mul(g, RECORD_BYTES)
        q, s = e.add(self.q, record), e.add(self.s, record)
        for offset in range(0, kind.group_bytes, LINE):
            e.prefetch(group, PREFETCH_AHEAD + offset)
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


def counts_by_block(most: int) -> dict[int, list[int]]:
    """Pure. Rows of a register block, `most` or less -> the row counts that are worked off in blocks of that many."""
    out: dict[int, list[int]] = {}
    for n in ROW_COUNTS:
        out.setdefault(n // -(-n // most), []).append(n)
    return out


def each_block(e: Emit, lanes: int, n_blocks: Value | None, body: Callable[[Value, Value], None]) -> None:
    """body(i_block, first column) for all blocks (None: there is but one, and no loop) and all columns."""

    def all_columns(i: Value) -> None:
        if lanes == N_COLUMNS:
            body(i, e.i64(0))
        else:
            e.each(N_COLUMNS // lanes, lambda j: body(i, e.mul(j, lanes)))

    if n_blocks is None:
        all_columns(e.i64(0))
    else:
        e.each(n_blocks, all_columns)


def store_rows(e: Emit, sums: list[Value], out: Value, stride: Value, accumulate: Value) -> None:
    """Changes out[r] for every row."""
    addresses = [out]
    for _ in sums[1:]:
        addresses.append(e.add(addresses[-1], stride))

    def put(add: bool) -> None:
        for total, address in zip(sums, addresses, strict=True):
            e.store(e.b.fadd(e.load(address, total.type), total) if add else total, address)

    e.when(e.b.icmp_signed("!=", accumulate, e.i64(0)), lambda: put(True))
    e.when(e.b.icmp_signed("==", accumulate, e.i64(0)), lambda: put(False))


def _compiled(kind: PanelKind, features: Features) -> ObjectCode:
    return object_code(body_of(kind, isa_of(features)), 8, f"gemm_{kind.name}_{features.isa.name}", features)


KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType(
    {kind.name: partial(_compiled, kind) for kind in KINDS.values()}
)
