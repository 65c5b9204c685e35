"""The linear kernels for weights that are numbers: up to 12 rows times one panel of 16 columns or two, in float32.

Enters: f32 rows, `x_stride` bytes apart, and panels of f32, f16 or bf16 (panels.FloatKind). Leaves: out[row][columns]
f32. Per kind two functions (int64 each), float_gemm.<kind> for 16 columns and float_gemm.<kind>_pair for 32, the
second 16 of them from the panel that begins `panel_bytes` further on:

    void gemm(n_rows, x, panel, out, out_stride, n_in, accumulate, x_stride)
    void gemm(n_rows, x, panel, out, out_stride, n_in, accumulate, x_stride, panel_bytes)

    for r in range(n_rows):                                   # 1, 2, 3, 4, 6, 8 or 12
        acc = zeros(columns)
        for i in range(n_in):                                 # x is not rounded: every product is float32
            acc += x[r, i] * w[i]
        out[r] = acc + (out[r] if accumulate else 0)

All row counts, and both functions, add in this order. A pair of panels halves the loads of x for each product, which is
what a core with two units for products waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from polyseq.backends.cpu.compiler.assemble import object_code
from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.emit import F32, I16, I32, Body, Emit, Value, vec
from polyseq.backends.cpu.isa.isa import Isa
from polyseq.backends.cpu.isa.sets import isa_of
from polyseq.backends.cpu.linear.ahead import LINE
from polyseq.backends.cpu.linear.gemm import counts_by_block, store_rows
from polyseq.backends.cpu.panels.panel_kind import N_COLUMNS, FloatKind

NAMES = ("f32", "f16", "bf16")
_AHEAD = 1024  # bytes of a panel that are asked for ahead


def weight_pair(e: Emit, name: str, isa: Isa, address: Value, column: Value, lanes: int) -> tuple[Value, Value]:
    """Weights of inputs i and i + 1 as f32, from the first of `lanes` columns; `address` is where input i begins."""
    if name == "f32":
        first = e.add(address, e.mul(column, 4))
        return e.load(first, vec(F32, lanes)), e.load(first, vec(F32, lanes), 4 * N_COLUMNS)
    if name == "f16":
        first = e.add(address, e.mul(column, 2))
        bits = (e.load(first, vec(I16, lanes), at) for at in (0, 2 * N_COLUMNS))
        return isa.f16_to_f32(e, next(bits)), isa.f16_to_f32(e, next(bits))
    both = e.load(e.add(address, e.mul(column, 4)), vec(I32, lanes))
    low, high = e.b.shl(both, e.const(both.type, 16)), e.b.and_(both, e.const(both.type, 0xFFFF0000))
    return e.view(low, vec(F32, lanes)), e.view(high, vec(F32, lanes))


def pair_bytes(name: str) -> int:
    """Pure. Bytes of two inputs of a panel."""
    return 2 * N_COLUMNS * (4 if name == "f32" else 2)


def body_of(name: str, isa: Isa) -> Body:
    """Pure. The kernel for one kind of numbers on one instruction set; with a ninth argument for two panels."""

    def gemm(
        e: Emit,
        n_rows: Value,
        x: Value,
        panel: Value,
        out: Value,
        out_stride: Value,
        n_in: Value,
        accumulate: Value,
        x_stride: Value,
        *panel_bytes: Value,
    ) -> None:
        def rows(n_block: int) -> None:
            def block(i: Value) -> None:
                row = e.mul(i, n_block)
                x_rows = [e.add(x, e.mul(e.add(row, r), x_stride)) for r in range(n_block)]
                first = e.add(out, e.mul(row, out_stride))
                for columns in _tiles(e, isa, panel, panel_bytes):
                    sums = _sums(e, name, isa, x_rows, columns, n_in)
                    for place, some in zip(columns, sums, strict=True):
                        store_rows(e, some, e.add(first, place.out), out_stride, accumulate)

            e.each(e.b.udiv(n_rows, e.i64(n_block)), block)

        e.match(n_rows, counts_by_block(isa.rows_at_once(FloatKind(name))), rows)

    return gemm


@dataclass(frozen=True, slots=True)
class _Columns:
    """Neighbouring columns of one panel."""

    panel: Value
    first: int  # of the panel's columns
    out: int  # bytes from the first column of all
    lanes: int


def _tiles(e: Emit, isa: Isa, panel: Value, panel_bytes: tuple[Value, ...]) -> list[list[_Columns]]:
    """All columns, in groups whose sums are in registers at once."""
    lanes = min(isa.float_columns, N_COLUMNS)
    panels = [panel, *(e.add(panel, n_bytes) for n_bytes in panel_bytes)]
    columns = [
        _Columns(start, first, 4 * (i * N_COLUMNS + first), lanes)
        for i, start in enumerate(panels)
        for first in range(0, N_COLUMNS, lanes)
    ]
    at_once = isa.float_columns // lanes
    return [columns[i : i + at_once] for i in range(0, len(columns), at_once)]


def _sums(e: Emit, name: str, isa: Isa, x_rows: list[Value], columns: list[_Columns], n_in: Value) -> list[list[Value]]:
    """For each of the columns, per row its sum over all inputs."""
    n = len(x_rows)
    size = pair_bytes(name) // 2

    def products(pair: Value, acc: list[Value], n_used: int) -> list[Value]:
        """acc + the products of a pair's first `n_used` inputs."""
        weights = []
        for c in columns:
            address = e.add(c.panel, e.mul(pair, 2 * size))
            if c.first == 0:
                for at in range(0, 2 * size, LINE):
                    e.prefetch(address, _AHEAD + at)
            weights.append(weight_pair(e, name, isa, address, e.i64(c.first), c.lanes))
        out = list(acc)
        for j in range(n_used):
            for r in range(n):
                value = e.load(x_rows[r], F32, e.add(e.mul(pair, 8), 4 * j))
                for i, weight in enumerate(weights):
                    out[i * n + r] = e.fma(e.splat(value, columns[i].lanes), weight[j], out[i * n + r])
        return out

    def two_pairs(i: Value, acc: list[Value]) -> list[Value]:
        first = e.mul(i, 2)
        return products(e.add(first, 1), products(first, acc, 2), 2)

    start = [e.const(vec(F32, c.lanes), 0.0) for c in columns for _ in range(n)]
    n_pairs = e.b.lshr(n_in, e.i64(1))
    acc = e.loop(e.b.lshr(n_in, e.i64(2)), start, two_pairs)
    last_pair = e.b.sub(n_pairs, e.i64(1))
    acc = e.loop(e.b.and_(n_pairs, e.i64(1)), acc, lambda _, acc: products(last_pair, acc, 2))
    acc = e.loop(e.b.and_(n_in, e.i64(1)), acc, lambda _, acc: products(n_pairs, acc, 1))
    return [acc[c * n : (c + 1) * n] for c in range(len(columns))]


def _compiled(name: str, n_panels: int, features: Features) -> ObjectCode:
    suffix = "_pair" if n_panels == 2 else ""
    return object_code(
        body_of(name, isa_of(features)), 7 + n_panels, f"float_gemm_{name}{suffix}_{features.isa.name}", features
    )


KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType(
    {name: partial(_compiled, name, 1) for name in NAMES}
    | {f"{name}_pair": partial(_compiled, name, 2) for name in NAMES}
)
