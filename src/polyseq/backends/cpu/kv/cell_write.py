"""Rows of K or V go into their cells: cell_write.k_<kind>, cell_write.v_<kind>.

Enters: rows f32 and each row's place, by the words `C` of rows/words.py. Leaves: blocks as kv/layout.py draws them. A
cell's numbers lie scattered over its block, and two cells that share a word may be written by two threads: so every
store is of one cell's own bytes. int8: scale = largest / 127, per 32 dims of K and per head of V; a group with NaN or
infinity has the scale NaN, and who sees the cell sees that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.emit import F32, I16, I32, I64, Emit, F32x16, I8x16, I32x16, Value, vec
from polyseq.backends.cpu.ir.memory import copy_row
from polyseq.backends.cpu.kv.address import block_address
from polyseq.backends.cpu.kv.layout import BUNDLE, SCALE_DIMS, KvType
from polyseq.backends.cpu.rows.units import Unit, unit_code
from polyseq.backends.cpu.rows.words import C
from polyseq.backends.cpu.words.records import K
from polyseq.backends.cpu.words.tile_words import BLOCK

_LINE = 64
_LEAST = 1e-20


def _padded_head(e: Emit, source: Value, n: Value, n_padded: Value, scratch: Value) -> None:
    """n f32 go to scratch, with zeros behind."""
    e.each(e.b.lshr(n_padded, e.i64(4)), lambda i: e.store(e.const(F32x16, 0.0), scratch, e.mul(i, _LINE)))
    copy_row(e, scratch, source, n)


def _vectors(e: Emit, n_padded: Value, x: Value, put: Callable[[Value, Value], None]) -> None:
    """put(i, 16 f32) for every vector of a head."""
    e.each(e.b.lshr(n_padded, e.i64(4)), lambda i: put(i, e.load(x, F32x16, e.mul(i, _LINE))))


def _put_k(e: Emit, kind: KvType, x: Value, n_padded: Value, k: Value, cell: Value) -> None:
    """A head of K into its block at `k`."""
    if kind == "bf16":  # [pair of dims][cell][2]

        def pairs(i: Value, vector: Value) -> None:
            at = e.add(e.add(k, e.mul(i, 8 * _LINE)), e.mul(cell, 4))
            words = e.view(e.f32_to_bf16(vector), vec(I32, 8))
            for j in range(8):
                e.store(e.lane(words, j), at, j * _LINE)

        _vectors(e, n_padded, x, pairs)
    elif kind == "f32":  # [dim][cell]

        def dims(i: Value, vector: Value) -> None:
            at = e.add(e.add(k, e.mul(i, 16 * _LINE)), e.mul(cell, 4))
            for j in range(16):
                e.store(e.lane(vector, j), at, j * _LINE)

        _vectors(e, n_padded, x, dims)
    else:
        _put_k_int8(e, x, n_padded, k, cell)


def _put_k_int8(e: Emit, x: Value, n_padded: Value, k: Value, cell: Value) -> None:
    """[pair of dims][cell][2] codes, then [group][cell] scales."""
    scales = e.add(e.add(k, e.mul(n_padded, BLOCK)), e.mul(cell, 4))

    def group(g: Value, _: list[Value]) -> list[Value]:
        halves = [e.load(x, F32x16, e.add(e.mul(g, 4 * SCALE_DIMS), _LINE * i)) for i in (0, 1)]
        scale, inverse = _scale(e, *_extent(e, halves))
        at = e.add(e.add(k, e.mul(g, SCALE_DIMS * BLOCK)), e.mul(cell, 2))
        for i, half in enumerate(halves):
            pairs = e.view(_codes(e, half, inverse), vec(I16, 8))
            for j in range(8):
                e.store(e.lane(pairs, j), at, 2 * BLOCK * (8 * i + j))
        e.store(scale, scales, e.mul(g, _LINE))
        return []

    e.loop(e.b.lshr(n_padded, e.i64(5)), [], group)


def _put_v(e: Emit, kind: KvType, x: Value, n_padded: Value, v: Value, cell: Value) -> None:
    """A head of V into its block at `v`."""
    if kind == "f32":  # [cell][dim]
        at = e.add(v, e.mul(e.mul(cell, n_padded), 4))
        _vectors(e, n_padded, x, lambda i, vector: e.store(vector, at, e.mul(i, _LINE)))
        return
    size = 2 if kind == "bf16" else 1  # [pair of cells][dim][2]
    pair, odd = e.b.lshr(cell, e.i64(1)), e.b.and_(cell, e.i64(1))
    first = e.add(e.add(v, e.mul(e.mul(pair, n_padded), 2 * size)), e.mul(odd, size))
    inverse: Value = None
    if kind == "int8":
        n_vectors = e.b.lshr(n_padded, e.i64(4))
        zero = e.const(F32x16, 0.0)
        grown = e.loop(n_vectors, [zero, zero], lambda i, c: _grown(e, e.load(x, F32x16, e.mul(i, _LINE)), c))
        scale, inverse = _scale(e, *grown)
        e.store(scale, e.add(e.add(v, e.mul(n_padded, BLOCK)), e.mul(cell, 4)))

    def dims(i: Value, vector: Value) -> None:
        at = e.add(first, e.mul(i, 32 * size))
        codes = e.f32_to_bf16(vector) if kind == "bf16" else _codes(e, vector, inverse)
        for j in range(16):
            e.store(e.lane(codes, j), at, 2 * size * j)

    _vectors(e, n_padded, x, dims)


def _grown(e: Emit, vector: Value, carried: list[Value]) -> list[Value]:
    """(largest |x|, NaN where x is not finite) per lane, one vector more."""
    return [e.maximum(carried[0], e.abs(vector)), e.fma(vector, e.const(F32x16, 0.0), carried[1])]


def _extent(e: Emit, vectors: list[Value]) -> list[Value]:
    carried = [e.const(F32x16, 0.0), e.const(F32x16, 0.0)]
    for vector in vectors:
        carried = _grown(e, vector, carried)
    return carried


def _scale(e: Emit, largest: Value, bad: Value) -> tuple[Value, Value]:
    """(what a code is worth, its inverse in every lane)."""
    top = e.maximum(e.max(largest), e.const(F32, _LEAST))
    scale = e.b.fadd(e.b.fmul(top, e.const(F32, 1 / 127)), e.sum(bad))
    return scale, e.splat(e.b.fdiv(e.const(F32, 127.0), top))


def _codes(e: Emit, vector: Value, inverse: Value) -> Value:
    x = e.rint(e.b.fmul(vector, inverse))
    clipped = e.minimum(e.maximum(x, e.const(F32x16, -127.0)), e.const(F32x16, 127.0))
    return e.b.trunc(e.b.fptosi(clipped, I32x16), I8x16)


# put(e, kind, x, n_padded, head in the block, cell)
Put = Callable[[Emit, KvType, Value, Value, Value, Value], None]


def _write(put: Put, multiple: int, kind: KvType, e: Emit, unit: Unit, row: Value) -> None:
    """A row's heads; a head fills a multiple of so many dims."""
    part = unit.word(C.PART)
    places, pool = (unit.step_word(e.add(part, word)) for word in (K.PLACES, K.POOL))
    place = e.b.sext(e.load(places, I32, e.mul(row, 4)), I64)
    n_bytes = unit.word(C.HEAD_BYTES)
    first = e.add(pool, unit.word(C.OFFSET))
    block = block_address(e, first, e.b.lshr(place, e.i64(4)), n_bytes, unit.word(C.BUNDLE_BYTES))
    cell = e.b.and_(place, e.i64(BLOCK - 1))
    n = unit.word(C.HEAD)
    n_padded = e.mul(e.b.udiv(e.add(n, multiple - 1), e.i64(multiple)), multiple)

    def head(h: Value) -> None:
        there = e.add(block, e.mul(h, e.mul(n_bytes, BUNDLE)))
        source = e.add(unit.row(C.X, C.X_STRIDE, row), e.mul(e.mul(h, n), 4))
        _padded_head(e, source, n, n_padded, unit.scratch)
        put(e, kind, unit.scratch, n_padded, there, cell)

    e.each(unit.word(C.N_HEAD), head)


_KINDS: tuple[KvType, ...] = ("bf16", "f32", "int8")
KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType(
    {
        f"{name}_{kind}": unit_code(f"cell_write_{name}_{kind}", partial(_write, put, multiple, kind))
        for name, put, multiple in (("k", _put_k, SCALE_DIMS), ("v", _put_v, BLOCK))
        for kind in _KINDS
    }
)
