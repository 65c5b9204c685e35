"""One row of a matrix in panels as float32 (the embedding of a token), and the unit that takes many.

Enters: a panel and which of its 16 columns. Leaves: that column's inputs in order, f32: the values of `panels.unpack`,
bit for bit. Per kind one function, panel_rows.<kind>:

    void row(panel, column, out, n_inner)                     # n_inner: groups of 32 inputs; inputs, for float kinds

A column's codes lie 64 bytes apart, 4 in each place, so a row reads as many cache lines as a whole panel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from polyseq.backends.cpu.compiler.assemble import object_code
from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.emit import F32, I8, I16, I32, I64, Body, Emit, Value, vec
from polyseq.backends.cpu.isa.generic import Generic
from polyseq.backends.cpu.isa.isa import Isa
from polyseq.backends.cpu.isa.sets import isa_of
from polyseq.backends.cpu.linear.float_gemm import NAMES, pair_bytes, weight_pair
from polyseq.backends.cpu.linear.tile import codes, column_factors, in_units
from polyseq.backends.cpu.linear.words import E
from polyseq.backends.cpu.panels.panel_kind import KINDS, N_COLUMNS, STEPS, SUPER, PanelKind
from polyseq.backends.cpu.rows.units import Unit, unit_code

_PLAIN = Generic()  # one column at a time has no use for wide instructions


def body_of(kind: PanelKind) -> Body:
    """Pure. The kernel for one kind of codes."""

    def row(e: Emit, panel: Value, column: Value, out: Value, n_groups: Value) -> None:
        def group(address: Value, to: Value, d: Value | None, dmin: Value | None) -> None:
            first = e.add(address, e.mul(column, 4))
            for part in range(kind.n_scales):
                scale = column_factors(e, kind, _PLAIN, address, column, kind.code_bytes, part, d, 1)
                least = None
                if kind.minimum:
                    least = column_factors(e, kind, _PLAIN, address, column, kind.min_at, part, dmin, 1)
                n_steps = STEPS // kind.n_scales
                for step in range(part * n_steps, (part + 1) * n_steps):
                    four = e.view(codes(e, kind, _PLAIN, first, step, 1), vec(I8, 4))
                    integers = e.b.sub(e.b.zext(four, vec(I32, 4)), e.const(vec(I32, 4), kind.offset))
                    values = e.b.fmul(e.b.sitofp(integers, vec(F32, 4)), e.splat(e.lane(scale, 0), 4))
                    if least is not None:
                        values = e.b.fadd(values, e.splat(e.lane(least, 0), 4))
                    e.store(values, to, 16 * step)

        def plain(g: Value) -> None:
            group(e.add(panel, e.mul(g, kind.group_bytes)), e.add(out, e.mul(g, 128)), None, None)

        def super_block(i: Value) -> None:
            head = e.add(panel, e.mul(i, kind.head_bytes + SUPER * kind.group_bytes))
            d_at = e.add(head, e.mul(column, 2))
            d = in_units(e, kind, e.f16_to_f32_spelt(e.load(d_at, vec(I16, 1))))
            dmin = e.b.fneg(e.f16_to_f32_spelt(e.load(d_at, vec(I16, 1), 2 * N_COLUMNS))) if kind.minimum else None
            first, to = e.add(head, kind.head_bytes), e.add(out, e.mul(i, SUPER * 128))

            e.each(SUPER, lambda g: group(e.add(first, e.mul(g, kind.group_bytes)), e.add(to, e.mul(g, 128)), d, dmin))

        if kind.in_super_blocks:
            e.each(e.b.lshr(n_groups, e.i64(3)), super_block)
        else:
            e.each(n_groups, plain)

    return row


def float_body_of(name: str, isa: Isa) -> Body:
    """Pure. The kernel for one kind of numbers."""

    def row(e: Emit, panel: Value, column: Value, out: Value, n_in: Value) -> None:
        def pair(i: Value, n_used: int) -> None:
            address = e.add(panel, e.mul(i, pair_bytes(name)))
            for j, weight in enumerate(weight_pair(e, name, isa, address, column, 1)[:n_used]):
                e.store(weight, e.add(out, e.mul(i, 8)), 4 * j)

        n_pairs = e.b.lshr(n_in, e.i64(1))
        e.each(n_pairs, lambda i: pair(i, 2))
        e.when(e.b.icmp_signed("!=", e.b.and_(n_in, e.i64(1)), e.i64(0)), lambda: pair(n_pairs, 1))

    return row


def _row(e: Emit, unit: Unit, row: Value) -> None:
    """The unit "linear.panel_rows.rows": words `E`."""
    i = e.b.sext(e.load(unit.step_word(unit.word(E.IDS_WORD)), I32, e.mul(row, 4)), I64)
    panel = e.add(unit.word(E.TABLE), e.b.mul(e.b.udiv(i, e.i64(N_COLUMNS)), unit.word(E.PANEL_BYTES)))
    column, out = e.b.urem(i, e.i64(N_COLUMNS)), unit.row(E.OUT, E.OUT_STRIDE, row)
    e.call(unit.word(E.KERNEL), panel, column, out, unit.word(E.N_INNER))


def _codes_kernel(kind: PanelKind, features: Features) -> ObjectCode:
    return object_code(body_of(kind), 4, f"panel_row_{kind.name}_{features.isa.name}", features)


def _floats_kernel(name: str, features: Features) -> ObjectCode:
    body = float_body_of(name, isa_of(features))
    return object_code(body, 4, f"panel_row_{name}_{features.isa.name}", features)


KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType(
    {
        **{kind.name: partial(_codes_kernel, kind) for kind in KINDS.values()},
        **{name: partial(_floats_kernel, name) for name in NAMES},
        "rows": unit_code("panel_rows", _row),
    }
)
