"""The linear kernels for weights that are numbers: up to 12 rows times one panel of 16 columns, in float32.

Enters: f32 rows, `x_stride` bytes apart, and a panel of f32, f16 or bf16 (panels.FloatKind). Leaves: out[row][16
columns] f32. Per kind one function, float_gemm.<kind> (int64 each):

    void gemm(n_rows, x, panel, out, out_stride, n_in, accumulate, x_stride)

    for r in range(n_rows):                                   # 1, 2, 3, 4, 6, 8 or 12
        even, odd = zeros(16), zeros(16)
        for i in range(0, n_in, 2):                           # x is not rounded: every product is float32
            even += x[r, i] * w[i]
            odd += x[r, i + 1] * w[i + 1]                     # not after the last of an odd n_in
        out[r] = even + odd + (out[r] if accumulate else 0)

Two sums per row hide the latency of a fused multiply-add where there is one row only; all row counts add in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from polyseq.backends.cpu.assemble import object_code
from polyseq.backends.cpu.emit import F32, I16, I32, Body, Emit, Value, vec
from polyseq.backends.cpu.features import Features
from polyseq.backends.cpu.gemm import LINE, PREFETCH_AHEAD, counts_by_block, each_block, store_rows
from polyseq.backends.cpu.isa import isa_of
from polyseq.backends.cpu.isa.isa import Isa
from polyseq.backends.cpu.object_code import ObjectCode
from polyseq.backends.cpu.panel_kind import N_COLUMNS

NAMES = ("f32", "f16", "bf16")


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
    """Pure. The kernel for one kind of numbers on one instruction set."""

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
    ) -> None:
        def rows(n_block: int) -> None:
            def block(i: Value, column: Value) -> None:
                row = e.mul(i, n_block)
                x_rows = [e.add(x, e.mul(e.add(row, r), x_stride)) for r in range(n_block)]
                sums = _sums(e, name, isa, x_rows, panel, column, n_in)
                first = e.add(e.add(out, e.mul(row, out_stride)), e.mul(column, 4))
                store_rows(e, sums, first, out_stride, accumulate)

            each_block(e, isa, n_rows, n_block, block)

        e.match(n_rows, counts_by_block(isa), rows)

    return gemm


def _sums(e: Emit, name: str, isa: Isa, x_rows: list[Value], panel: Value, column: Value, n_in: Value) -> list[Value]:
    """Per row its sum over all inputs, [columns] f32."""
    n = len(x_rows)

    def products(i: Value, acc: list[Value], n_used: int) -> list[Value]:
        """acc + the products of pair i's first `n_used` inputs."""
        address = e.add(panel, e.mul(i, pair_bytes(name)))
        for at in range(0, pair_bytes(name), LINE):
            e.prefetch(address, PREFETCH_AHEAD + at)
        out = list(acc)
        for j, weight in enumerate(weight_pair(e, name, isa, address, column, isa.lanes)[:n_used]):
            for r in range(n):
                value = e.load_splat(e.add(x_rows[r], e.mul(i, 8)), F32, 4 * j, isa.lanes)
                out[j * n + r] = e.fma(value, weight, acc[j * n + r])
        return out

    n_pairs = e.b.lshr(n_in, e.i64(1))
    acc = e.loop(n_pairs, [e.const(vec(F32, isa.lanes), 0.0)] * (2 * n), lambda i, acc: products(i, acc, 2))
    is_odd = e.b.and_(n_in, e.i64(1))
    acc = e.loop(is_odd, acc, lambda _, acc: products(n_pairs, acc, 1))
    return [e.b.fadd(acc[r], acc[n + r]) for r in range(n)]


def _compiled(name: str, features: Features) -> ObjectCode:
    return object_code(body_of(name, isa_of(features)), 8, f"float_gemm_{name}_{features.isa.name}", features)


KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType(
    {name: partial(_compiled, name) for name in NAMES}
)
