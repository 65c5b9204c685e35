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
whose bytes are the bottleneck with few rows, so software asks for them ahead of time: where one pass through the panel
is all there is, 2 KB ahead; where it takes several (fewer rows or columns fit the registers), the panel behind this
one, in equal parts by all passes, else memory would rest from the second pass on.

One or two rows have a kernel of their own, gemm.<kind>_pair. It walks through two panels side by side, for a core reads
two stretches of memory half as fast again as one:

    void gemm(n_rows, records, panel, out, out_stride, n_groups, accumulate, far_panel, far_out)

The second panel begins `far_panel` bytes on, its columns go `far_out` bytes on. Codes of 8 bits are left to the CPU's
own foresight: asked for as well, they came a sixth slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from polyseq.backends.cpu.compiler.assemble import object_code
from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.emit import Body, Emit, Value
from polyseq.backends.cpu.isa.isa import Isa
from polyseq.backends.cpu.isa.sets import isa_of
from polyseq.backends.cpu.linear.ahead import near, next_panel, nothing
from polyseq.backends.cpu.linear.row_blocks import N_BLOCK, ROW_COUNTS
from polyseq.backends.cpu.linear.tile import Tile, tile_sums
from polyseq.backends.cpu.panels.panel_kind import KINDS, N_COLUMNS, PanelKind

AHEAD = 2048  # bytes of a panel that are asked for before they are needed
PAIR_AHEAD = 1024
MOST_PAIR_ROWS = 2


def body_of(kind: PanelKind, isa: Isa) -> Body:
    """Pure. The kernel for one kind on one instruction set."""
    most, n_wide = isa.rows_at_once(kind), isa.n_wide(kind)
    lanes = n_wide * isa.lanes
    n_parts = N_COLUMNS // lanes
    is_one_pass = most == N_BLOCK and n_parts == 1

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
            n_blocks = e.b.udiv(n_rows, e.i64(n_block))

            def block(i: Value, columns: Value) -> None:
                asks = near(e, kind, AHEAD)
                if not is_one_pass:
                    i_pass = e.add(e.mul(i, n_parts), e.b.udiv(columns, e.i64(lanes)))
                    asks = next_panel(e, kind, panel, n_groups, i_pass, e.mul(n_blocks, n_parts), n_parts)
                tile = Tile(e, kind, isa, n_block, records, i, panel, columns, n_wide, asks)
                first = e.add(e.add(out, e.mul(e.mul(i, n_block), out_stride)), e.mul(columns, 4))
                for w, sums in enumerate(tile_sums([tile], n_groups)):
                    store_rows(e, sums, e.add(first, 4 * isa.lanes * w), out_stride, accumulate)

            each_block(e, lanes, None if most == N_BLOCK else n_blocks, block)

        e.match(n_rows, counts_by_block(most), rows)

    return gemm


def pair_body_of(kind: PanelKind, isa: Isa) -> Body:
    """Pure. The kernel of one or two rows for one kind: all columns of two panels at once."""

    def gemm(
        e: Emit,
        n_rows: Value,
        records: Value,
        panel: Value,
        out: Value,
        out_stride: Value,
        n_groups: Value,
        accumulate: Value,
        far_panel: Value,
        far_out: Value,
    ) -> None:
        asks = near(e, kind, PAIR_AHEAD) if kind.bits < 8 else nothing

        def rows(n: int) -> None:
            places = [(e.add(panel, far), e.add(out, columns)) for far, columns in ((0, 0), (far_panel, far_out))]
            n_wide = N_COLUMNS // isa.lanes
            tiles = [Tile(e, kind, isa, n, records, e.i64(0), weights, e.i64(0), n_wide, asks) for weights, _ in places]
            firsts = [e.add(first, 4 * isa.lanes * w) for _, first in places for w in range(n_wide)]
            for first, some in zip(firsts, tile_sums(tiles, n_groups), strict=True):
                store_rows(e, some, first, out_stride, accumulate)

        e.match(n_rows, {n: [n] for n in range(1, MOST_PAIR_ROWS + 1)}, rows)

    return gemm


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


def _pair_compiled(kind: PanelKind, features: Features) -> ObjectCode:
    return object_code(pair_body_of(kind, isa_of(features)), 9, f"gemm_{kind.name}_pair_{features.isa.name}", features)


KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType(
    {kind.name: partial(_compiled, kind) for kind in KINDS.values()}
    | {f"{kind.name}_pair": partial(_pair_compiled, kind) for kind in KINDS.values()}
)
