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

from polyseq.backends.cpu.assemble import object_code
from polyseq.backends.cpu.emit import F32, I8, I16, I32, Body, Emit, Value, intrinsic_of, vec
from polyseq.backends.cpu.features import Features
from polyseq.backends.cpu.float_gemm import NAMES, pair_bytes, weight_pair
from polyseq.backends.cpu.gemm import codes, column_factors
from polyseq.backends.cpu.isa import isa_of
from polyseq.backends.cpu.isa.generic import Generic
from polyseq.backends.cpu.isa.isa import Isa
from polyseq.backends.cpu.linear_words import E
from polyseq.backends.cpu.memory import get_i32, get_i64
from polyseq.backends.cpu.object_code import ObjectCode
from polyseq.backends.cpu.panel_kind import KINDS, N_COLUMNS, STEPS, SUPER, PanelKind
from polyseq.backends.cpu.records import R

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
            d = e.f16_to_f32_spelt(e.load(d_at, vec(I16, 1)))
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


_call_row = intrinsic_of(lambda e, f, *args: e.call(f, *args), 5)


def rows(features: Features) -> Callable[..., None]:
    """The unit "panel_rows.rows": words `E`."""

    def unit(record: int, step: int, u0: int, u1: int, scratch: int) -> None:
        n_rows, per_unit = get_i64(step, get_i64(record, R.COUNT_WORD)), get_i64(record, R.PER_UNIT)
        ids = get_i64(step, get_i64(record, E.IDS_WORD))
        for row in range(u0 * per_unit, min(u1 * per_unit, n_rows)):
            i = get_i32(ids, row)
            panel = get_i64(record, E.TABLE) + i // N_COLUMNS * get_i64(record, E.PANEL_BYTES)
            out = get_i64(record, E.OUT) + row * get_i64(record, E.OUT_STRIDE)
            _call_row(get_i64(record, E.KERNEL), panel, i % N_COLUMNS, out, get_i64(record, E.N_INNER))

    return unit


def _codes_kernel(kind: PanelKind, features: Features) -> ObjectCode:
    return object_code(body_of(kind), 4, f"panel_row_{kind.name}_{features.isa.name}", features)


def _floats_kernel(name: str, features: Features) -> ObjectCode:
    body = float_body_of(name, isa_of(features))
    return object_code(body, 4, f"panel_row_{name}_{features.isa.name}", features)


KERNELS: Mapping[str, Callable[[Features], ObjectCode | Callable[..., None]]] = MappingProxyType(
    {
        **{kind.name: partial(_codes_kernel, kind) for kind in KINDS.values()},
        **{name: partial(_floats_kernel, name) for name in NAMES},
        "rows": rows,
    }
)
