"""The two products of attention over a list of blocks: scores = K q, and sums += p V.

Enters: blocks (kv/layout.py), their list, query rows or weights of any number of rows. Leaves: scores [row][listed
block][16] or sums [row][head_v]. C functions of int64s, one per kind of K and V:

    scores_<kind>(n_rows, q, q_stride, k, blocks, n_blocks, s, s_stride, n_groups, n_bytes, bundle_bytes)
        s[row][block][cell] = q[row] . K[block, cell]         int8: times the scales of K (per 32 dims) and of the query
    sums_<kind>(n_rows, p, p_stride, v, blocks, n_blocks, o, o_stride, n_vectors, n_bytes, bundle_bytes)
        o[row][dim] += p[row][block][cell] * V[block, cell, dim]   cell after cell, in the order of the list
    guarded_<kind>(p, masks, v, blocks, n_blocks, o, n_vectors, n_bytes, bundle_bytes)
        the same for one row, with zeros for every cell outside the row's mask: for NaN and infinity in hidden cells

`k` and `v` are where the head of the layer begins in block 0, `n_bytes` what it has in each block; `n_groups` is
head_k / 32, `n_vectors` head_v / 16. A row's sums grow in the same order however many rows there are. Up to 12 rows
share each load of K and V; the next listed block is asked for ahead. A step's instruction is in pair_formats.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from polyseq.backends.cpu.attention.pair_formats import PairFormat, pair_format
from polyseq.backends.cpu.compiler.assemble import object_code
from polyseq.backends.cpu.compiler.features import Features, InstructionSet
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.emit import F32, I16, I32, I64, Body, Emit, F32x16, Value
from polyseq.backends.cpu.kv.address import block_address
from polyseq.backends.cpu.kv.layout import SCALE_DIMS, KvType
from polyseq.backends.cpu.words.tile_words import BLOCK, MOST_ROWS

_LINE = 64
_PAIRS = SCALE_DIMS // 2  # of dims in a group
_CELL_PAIRS = BLOCK // 2
_UNROLLED = 4  # pairs of dims written out one after another; more only takes longer to compile


def most_rows(features: Features) -> int:
    """Pure. Rows whose sums fit into registers."""
    return 4 if features.isa in (InstructionSet.AVX2, InstructionSet.GENERIC) else 12


def _one_block(e: Emit, some: Callable[[int, Value], None], n: int, start: Value, i: Value) -> None:
    some(n, e.add(start, e.mul(i, n)))


def _in_blocks(e: Emit, features: Features, n_rows: Value, some: Callable[[int, Value], None]) -> None:
    """some(n, first row) for all rows: as many at once as there are, down to what is left."""
    most = most_rows(features)
    start = e.i64(0)
    for n in (12, 6) if most == 12 else (4,):
        n_full = e.b.udiv(e.b.sub(n_rows, start), e.i64(n))
        e.each(n_full, partial(_one_block, e, some, n, start))
        start = e.add(start, e.mul(n_full, n))
    e.match(e.b.sub(n_rows, start), range(1, 6 if most == 12 else 4), lambda n: some(n, start))


def _block(e: Emit, base: Value, blocks: Value, i: Value, n_bytes: Value, bundle_bytes: Value, ahead: int = 0) -> Value:
    """The address of listed block i + ahead."""
    number = e.load(blocks, I32, e.add(e.mul(i, 4), 4 * ahead))
    return block_address(e, base, e.b.sext(number, I64), n_bytes, bundle_bytes)


def _rows(e: Emit, base: Value, stride: Value, first: Value, n: int) -> list[Value]:
    """Addresses of rows first .. first + n - 1."""
    return [e.add(base, e.mul(stride, e.add(first, r))) for r in range(n)]


def scores_body(kind: KvType, features: Features) -> Body:
    """Pure. K q, see above."""
    f = pair_format(kind, features)

    def scores(
        e: Emit,
        n_rows: Value,
        q: Value,
        q_stride: Value,
        k: Value,
        blocks: Value,
        n_blocks: Value,
        s: Value,
        s_stride: Value,
        n_groups: Value,
        n_bytes: Value,
        bundle_bytes: Value,
    ) -> None:
        def some_rows(n: int, first: Value) -> None:
            queries, outs = _rows(e, q, q_stride, first, n), _rows(e, s, s_stride, first, n)

            def block(i: Value, _: list[Value]) -> list[Value]:
                at, ahead = (_block(e, k, blocks, i, n_bytes, bundle_bytes, next_) for next_ in (0, 1))
                scales = e.add(at, e.mul(n_groups, _PAIRS * f.pair_bytes))

                def group(g: Value, sums: list[Value]) -> list[Value]:
                    offset = e.mul(g, _PAIRS * f.pair_bytes)
                    here = [e.add(row, e.mul(g, _PAIRS * f.weight_bytes)) for row in queries]
                    k_now, k_ahead = e.add(at, offset), e.add(ahead, offset)
                    if kind != "int8":
                        return _group_steps(e, f, k_now, k_ahead, here, sums)
                    dots = _group_steps(e, f, k_now, k_ahead, here, [e.const(f.sums, 0)] * n)
                    scale = e.load(scales, F32x16, e.mul(g, _LINE))
                    return [e.fma(e.b.sitofp(dot, F32x16), scale, x) for dot, x in zip(dots, sums, strict=True)]

                sums = e.loop(n_groups, [e.const(F32x16, 0.0)] * n, group)
                for out, query, x in zip(outs, queries, sums, strict=True):
                    if kind == "int8":
                        tail = e.mul(n_groups, _PAIRS * f.weight_bytes)
                        x = e.b.fmul(x, e.load_splat(query, F32, tail))
                    e.store(x, out, e.mul(i, _LINE))
                return []

            e.loop(n_blocks, [], block)

        _in_blocks(e, features, n_rows, some_rows)

    return scores


def _group_steps(
    e: Emit, f: PairFormat, k: Value, k_ahead: Value, queries: list[Value], sums: list[Value]
) -> list[Value]:
    """All pairs of 32 dims. The next block's are asked for a few at a time: memory takes no more at once."""

    def some(i: Value, sums: list[Value]) -> list[Value]:
        offset, here = e.mul(i, _UNROLLED * f.pair_bytes), e.mul(i, _UNROLLED * f.weight_bytes)
        at = e.add(k, offset)
        for line in range(0, _UNROLLED * f.pair_bytes, _LINE):
            e.prefetch(k_ahead, e.add(offset, line))
        weights = [e.add(q, here) for q in queries]
        for pair in range(_UNROLLED):
            pairs = f.load(e, e.add(at, pair * f.pair_bytes), _LINE)
            sums = [f.step(e, x, pairs, w, pair * f.weight_bytes) for x, w in zip(sums, weights, strict=True)]
        return sums

    return e.loop(_PAIRS // _UNROLLED, sums, some)


def sums_body(kind: KvType, features: Features) -> Body:
    """Pure. p V, see above."""
    f = pair_format(kind, features)

    def sums(
        e: Emit,
        n_rows: Value,
        p: Value,
        p_stride: Value,
        v: Value,
        blocks: Value,
        n_blocks: Value,
        o: Value,
        o_stride: Value,
        n_vectors: Value,
        n_bytes: Value,
        bundle_bytes: Value,
    ) -> None:
        def some_rows(n: int, first: Value) -> None:
            weights, outs = _rows(e, p, p_stride, first, n), _rows(e, o, o_stride, first, n)

            def grow(n_wide: int, vector: Value, block: Value, n: Value) -> None:
                here = [e.add(row, e.mul(block, _CELL_PAIRS * f.weight_bytes)) for row in weights]
                places = [e.add(out, e.mul(vector, _LINE)) for out in outs]
                listed = e.add(blocks, e.mul(block, 4))
                _grow(e, f, here, v, listed, n, places, n_wide, vector, n_vectors, n_bytes, bundle_bytes)

            if most_rows(features) == 4:
                # Registers hold one vector's sums; memory is read block by block all the same.
                e.each(n_blocks, lambda i: e.each(n_vectors, lambda c: grow(1, c, i, e.i64(1))))
                return
            wide = 2 if n > 4 else 4
            n_chunks = e.b.udiv(n_vectors, e.i64(wide))
            done = e.mul(n_chunks, wide)
            e.each(n_chunks, lambda i: grow(wide, e.mul(i, wide), e.i64(0), n_blocks))
            e.each(e.b.sub(n_vectors, done), lambda i: grow(1, e.add(done, i), e.i64(0), n_blocks))

        _in_blocks(e, features, n_rows, some_rows)

    return sums


def guarded_body(kind: KvType, features: Features) -> Body:
    """Pure. p V of one row without its hidden cells, see above."""
    f = pair_format(kind, features)

    def guarded(
        e: Emit,
        p: Value,
        masks: Value,
        v: Value,
        blocks: Value,
        n_blocks: Value,
        o: Value,
        n_vectors: Value,
        n_bytes: Value,
        bundle_bytes: Value,
    ) -> None:
        def column(i: Value, _: list[Value]) -> list[Value]:
            out = e.add(o, e.mul(i, _LINE))
            _grow(e, f, [p], v, blocks, n_blocks, [out], 1, i, n_vectors, n_bytes, bundle_bytes, masks)
            return []

        e.loop(n_vectors, [], column)

    return guarded


def _grow(
    e: Emit,
    f: PairFormat,
    weights: list[Value],
    v: Value,
    blocks: Value,
    n_blocks: Value,
    outs: list[Value],
    n_wide: int,
    first: Value,
    n_vectors: Value,
    n_bytes: Value,
    bundle_bytes: Value,
    masks: Value | None = None,
) -> None:
    """outs[row][16 * n_wide dims] += p V for vectors first .. first + n_wide - 1 of every cell."""
    row_bytes = e.mul(n_vectors, f.pair_bytes)  # of a pair of cells
    # f32 keeps the two cells of a pair apart, a row of V each.
    odd, vector_bytes = e.mul(n_vectors, _LINE), min(f.pair_bytes, _LINE)
    start = e.mul(first, vector_bytes)

    def block(i: Value, sums: list[Value]) -> list[Value]:
        at, ahead = (e.add(_block(e, v, blocks, i, n_bytes, bundle_bytes, next_), start) for next_ in (0, 1))
        here = [e.add(row, e.mul(i, _CELL_PAIRS * f.weight_bytes)) for row in weights]
        if masks is not None:
            mask = e.load(masks, I16, e.mul(i, 2 * MOST_ROWS))
            for pair in range(_CELL_PAIRS):
                seen = _bit(e, mask, 2 * pair), _bit(e, mask, 2 * pair + 1)
                pairs = f.only(e, f.load(e, e.add(at, e.mul(row_bytes, pair)), odd), *seen)
                sums = [f.step(e, sums[0], pairs, here[0], pair * f.weight_bytes)]
            return sums

        def cells(pair: Value, sums: list[Value]) -> list[Value]:
            row = e.mul(row_bytes, pair)
            for c in range(n_wide):
                e.prefetch(ahead, e.add(row, c * vector_bytes))
            vectors = [f.load(e, e.add(at, e.add(row, c * vector_bytes)), odd) for c in range(n_wide)]
            now = [e.add(p, e.mul(pair, f.weight_bytes)) for p in here]
            return [
                f.step(e, sums[r * n_wide + c], vectors[c], now[r], 0) for r in range(len(here)) for c in range(n_wide)
            ]

        return e.loop(_CELL_PAIRS, sums, cells)

    places = [(out, _LINE * c) for out in outs for c in range(n_wide)]
    grown = e.loop(n_blocks, [e.load(out, f.sums, offset) for out, offset in places], block)
    for (out, offset), x in zip(places, grown, strict=True):
        e.store(x, out, offset)


def _bit(e: Emit, mask: Value, i: int) -> Value:
    return e.b.icmp_unsigned("!=", e.b.and_(mask, e.const(I16, 1 << i)), e.const(I16, 0))


def _kernel(
    body_of: Callable[[KvType, Features], Body], n_args: int, kind: KvType, name: str, features: Features
) -> ObjectCode:
    return object_code(body_of(kind, features), n_args, f"attention_{name}", features)


_KINDS: tuple[KvType, ...] = ("bf16", "f32", "int8")
KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType(
    {
        f"{name}_{kind}": partial(_kernel, body_of, n_args, kind, f"{name}_{kind}")
        for name, body_of, n_args, kinds in (
            ("scores", scores_body, 11, _KINDS),
            ("sums", sums_body, 11, _KINDS),
            ("guarded", guarded_body, 9, _KINDS[:2]),
        )
        for kind in kinds
    }
)
