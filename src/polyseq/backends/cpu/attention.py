"""Attention of a tile's rows on one KV head: queries, scores, softmax, weighted sums, results.

Enters: query rows f32, tiles (tile_words.py), K and V in blocks. Leaves: rows f32, or their 8-bit records, or both. A
unit is one tile on one KV head: all query heads that share it, times the tile's rows, are rows of one small product.

    for segment of the tile:                       # 512 positions
        s = scores of every run                    # attention_dots.py; common blocks once for all rows
        p = softmax weights of s, under the masks  # softmax.py
        o = sums p V of every run
        total = total joined with o                # exact but for one rounding per number
    result = total / sum of weights

A tile that is a part of a long row leaves `o` of its segments in PARTIALS instead; who finishes last joins all of them,
in the same order, so a row's bits do not depend on how many took part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from polyseq.backends.cpu import softmax
from polyseq.backends.cpu.activation import N_ROWS, RECORD_BYTES
from polyseq.backends.cpu.attention_dots import row_counts
from polyseq.backends.cpu.attention_words import STATE_BYTES, TAIL_BYTES, A
from polyseq.backends.cpu.emit import F32, I32, Emit, Value, intrinsic_of
from polyseq.backends.cpu.features import Features
from polyseq.backends.cpu.kv_layout import KvType
from polyseq.backends.cpu.memory import call_8, call_10, copy_f32, get_i32, get_i64
from polyseq.backends.cpu.numba_build import part
from polyseq.backends.cpu.pair_formats import Bf16Dot, pair_format
from polyseq.backends.cpu.quantise import quantise_at
from polyseq.backends.cpu.query import load_query
from polyseq.backends.cpu.records import K
from polyseq.backends.cpu.sync import add, store
from polyseq.backends.cpu.tile_words import BLOCK, MOST_ROWS, RUN_WORDS, TILE_WORDS, T, U

_LINE = 64
_quantise = intrinsic_of(quantise_at, 3)
_begin = intrinsic_of(softmax.begin, 1)
_find_peak = intrinsic_of(softmax.find_peak, 4)
_end_peak = intrinsic_of(softmax.end_peak, 1)
_weigh_f32 = intrinsic_of(softmax.weigh_f32, 4)
_weigh_bf16 = intrinsic_of(softmax.weigh_bf16, 5)
_weigh_scaled = intrinsic_of(softmax.weigh_scaled, 7)
_end_scaled = intrinsic_of(softmax.end_scaled, 1, returns="float32")
_round_weights = intrinsic_of(softmax.round_weights, 4, floats=(3,))
_end_segment_f32 = intrinsic_of(partial(softmax.end_segment, is_int=False), 3)
_end_segment_int = intrinsic_of(partial(softmax.end_segment, is_int=True), 3)
_join = intrinsic_of(softmax.join, 3)
_begin_total = intrinsic_of(softmax.begin_total, 2)
_end_total = intrinsic_of(softmax.end_total, 2)
_clear = intrinsic_of(softmax.clear, 2)
_is_finite = intrinsic_of(softmax.is_finite, 2, returns="int64")


@part
def _padded(n: int, multiple: int) -> int:
    return (n + multiple - 1) // multiple * multiple


@part
def _sees(run: int, r: int, n_group: int) -> bool:
    """Whether query row r reads this run."""
    who = get_i32(run, U.WHO)
    return who < 0 or who == r // n_group


def _unit(kind: KvType, features: Features) -> Callable[..., Any]:
    """Pure. void unit(record, step, u0, u1, scratch) for one kind of K and V."""
    is_int, is_bf16 = kind == "int8", isinstance(pair_format(kind, features), Bf16Dot)
    guards = not is_int
    p_bytes = _LINE if not (is_int or is_bf16) else _LINE // 2  # weights of a block
    most = row_counts(features)[0]

    def query(e: Emit, source: Value, n: Value, scale_bits: Value, q: Value) -> None:
        scale = e.view(e.b.trunc(scale_bits, I32), F32)
        load_query(e, kind, is_bf16, source, n, scale, q)

    query_row = intrinsic_of(query, 4)

    @part
    def count_now(left: int) -> int:
        """How many rows a kernel takes at once: the largest of its counts."""
        if left >= 12 and most >= 12:
            return 12
        if left >= 6 and most >= 6:
            return 6
        return min(left, 4)

    @part
    def load_queries(record: int, tile: int, head: int, n_rows: int, q: int) -> None:
        n_group, head_k = get_i64(record, A.N_GROUP), get_i64(record, A.HEAD_K)
        q_stride = 4 * _padded(head_k, 32) + TAIL_BYTES
        for r in range(n_rows):
            row = get_i32(tile, T.ROW + r // n_group)
            column = (head * n_group + r % n_group) * head_k
            source = get_i64(record, A.Q) + row * get_i64(record, A.Q_STRIDE) + 4 * column
            query_row(source, head_k, get_i64(record, A.SCALE), q + r * q_stride)

    @part
    def products(record: int, kv: int, run: int, n_rows: int, head: int, rows: int, s: int, o: int, keys: bool) -> None:
        """Scores of a run (keys), or its share of the sums: for the rows that read it, as many at once as there are."""
        n_group, n_left, r = get_i64(record, A.N_GROUP), n_rows, 0
        if get_i32(run, U.WHO) >= 0:
            n_left, r = n_group, get_i32(run, U.WHO) * n_group
        padded_k, padded_v = _padded(get_i64(record, A.HEAD_K), 32), _padded(get_i64(record, A.HEAD_V), BLOCK)
        blocks, n = get_i64(kv, K.LISTED) + 4 * get_i32(run, U.FIRST), get_i32(run, U.COUNT)
        s_stride, offset = _LINE * get_i32(run, U.N_LISTED), get_i32(run, U.OFFSET)
        block_bytes, pool = get_i64(record, A.BLOCK_BYTES), get_i64(kv, K.POOL)
        q_stride, o_stride = 4 * padded_k + TAIL_BYTES, 4 * padded_v + TAIL_BYTES
        while n_left > 0:
            m = count_now(n_left)
            if keys:
                k = pool + get_i64(record, A.K_OFFSET) + head * get_i64(record, A.K_BYTES)
                here = s + r * s_stride + _LINE * offset
                call_10(get_i64(record, A.SCORES), m, rows + r * q_stride, q_stride, k, blocks, n, here, s_stride,
                        padded_k // 32, block_bytes)  # fmt: skip
            else:
                v = pool + get_i64(record, A.V_OFFSET) + head * get_i64(record, A.V_BYTES)
                here = s + r * s_stride + p_bytes * offset
                call_10(get_i64(record, A.SUMS), m, here, s_stride, v, blocks, n, o + r * o_stride, o_stride,
                        padded_v // BLOCK, block_bytes)  # fmt: skip
            n_left -= m
            r += m

    @part
    def weigh(record: int, kv: int, first: int, end: int, r: int, head: int, s: int, state: int) -> None:
        """Scores of row r become weights, in all runs first .. end of a segment that it reads."""
        n_group = get_i64(record, A.N_GROUP)
        _begin(state)
        for phase in range(3 if is_int else 2):
            inverse = 0.0
            if phase == 1:
                _end_peak(state)
            if is_int and phase == 2:
                inverse = _end_scaled(state)
            for i in range(first, end):
                run = get_i64(kv, K.RUNS) + 4 * RUN_WORDS * i
                if _sees(run, r, n_group):
                    n, offset, j = get_i32(run, U.COUNT), get_i32(run, U.OFFSET), get_i32(run, U.FIRST)
                    row = s + r * _LINE * get_i32(run, U.N_LISTED)
                    masks = get_i64(kv, K.MASKS) + 2 * (MOST_ROWS * j + r // n_group)
                    here = row + _LINE * offset
                    if phase == 0:
                        _find_peak(here, masks, n, state)
                    elif not is_int:
                        if is_bf16:
                            _weigh_bf16(here, masks, n, state, row + p_bytes * offset)
                        else:
                            _weigh_f32(here, masks, n, state)
                    elif phase == 1:
                        padded_v, block_bytes = (
                            _padded(get_i64(record, A.HEAD_V), BLOCK),
                            get_i64(record, A.BLOCK_BYTES),
                        )
                        v = get_i64(record, A.V_OFFSET) + head * get_i64(record, A.V_BYTES)
                        scales = get_i64(kv, K.POOL) + v + padded_v * BLOCK
                        _weigh_scaled(here, masks, n, state, get_i64(kv, K.LISTED) + 4 * j, scales, block_bytes)
                    else:
                        _round_weights(here, n, row + p_bytes * offset, inverse)

    @part
    def guard(record: int, kv: int, first: int, end: int, r: int, head: int, s: int, o: int) -> None:
        """Row r's sums once more, without what its masks hide: where NaN or infinity may have come from there."""
        n_group, n_vectors = get_i64(record, A.N_GROUP), _padded(get_i64(record, A.HEAD_V), BLOCK) // BLOCK
        _clear(o, n_vectors)
        for i in range(first, end):
            run = get_i64(kv, K.RUNS) + 4 * RUN_WORDS * i
            if _sees(run, r, n_group):
                n, offset, j = get_i32(run, U.COUNT), get_i32(run, U.OFFSET), get_i32(run, U.FIRST)
                p = s + r * _LINE * get_i32(run, U.N_LISTED) + p_bytes * offset
                masks = get_i64(kv, K.MASKS) + 2 * (MOST_ROWS * j + r // n_group)
                v = get_i64(kv, K.POOL) + get_i64(record, A.V_OFFSET) + head * get_i64(record, A.V_BYTES)
                call_8(get_i64(record, A.GUARDED), p, masks, v, get_i64(kv, K.LISTED) + 4 * j, n, o, n_vectors,
                       get_i64(record, A.BLOCK_BYTES))  # fmt: skip

    @part
    def segment_sums(
        record: int, kv: int, first: int, end: int, n_rows: int, head: int, q: int, o: int, states: int, s: int
    ) -> None:
        """o: the rows' sums over one segment, with m and the sum of weights behind each."""
        padded_v = _padded(get_i64(record, A.HEAD_V), BLOCK)
        o_stride, n_vectors = 4 * padded_v + TAIL_BYTES, padded_v // BLOCK
        for phase in range(2):
            for i in range(first, end):
                run = get_i64(kv, K.RUNS) + 4 * RUN_WORDS * i
                products(record, kv, run, n_rows, head, q, s, o, phase == 0)
            if phase == 0:
                for r in range(n_rows):
                    weigh(record, kv, first, end, r, head, s, states + r * STATE_BYTES)
                    _clear(o + r * o_stride, n_vectors)
        for r in range(n_rows):
            if guards and _is_finite(o + r * o_stride, n_vectors) == 0:
                guard(record, kv, first, end, r, head, s, o + r * o_stride)
            if is_int:
                _end_segment_int(o + r * o_stride, n_vectors, states + r * STATE_BYTES)
            else:
                _end_segment_f32(o + r * o_stride, n_vectors, states + r * STATE_BYTES)

    @part
    def put_results(record: int, tile: int, head: int, n_rows: int, total: int) -> None:
        n_group, head_v = get_i64(record, A.N_GROUP), get_i64(record, A.HEAD_V)
        padded_v, n_head = _padded(head_v, BLOCK), n_group * get_i64(record, A.N_HEAD_KV)
        for r in range(n_rows):
            values, row = total + r * (4 * padded_v + TAIL_BYTES), get_i32(tile, T.ROW + r // n_group)
            column = (head * n_group + r % n_group) * head_v
            _end_total(values, padded_v // BLOCK)
            if get_i64(record, A.OUT) != 0:
                copy_f32(get_i64(record, A.OUT) + row * get_i64(record, A.OUT_STRIDE) + 4 * column, values, head_v)
            if get_i64(record, A.RECORDS) != 0:
                group0 = row // N_ROWS * (n_head * head_v // 32) + column // 32
                for g in range(head_v // 32):
                    at = get_i64(record, A.RECORDS) + (group0 + g) * RECORD_BYTES
                    _quantise(values + 128 * g, at, row % N_ROWS)

    @part
    def one_tile(record: int, kv: int, tile: int, head: int, scratch: int) -> None:
        n_group, n_heads = get_i64(record, A.N_GROUP), get_i64(record, A.N_HEAD_KV)
        padded_k, padded_v = _padded(get_i64(record, A.HEAD_K), 32), _padded(get_i64(record, A.HEAD_V), BLOCK)
        o_stride, n_vectors = 4 * padded_v + TAIL_BYTES, padded_v // BLOCK
        n_rows, n_most = get_i32(tile, T.N_ROWS) * n_group, MOST_ROWS * n_group
        q = scratch
        o = q + n_most * (4 * padded_k + TAIL_BYTES)
        total = o + n_most * o_stride
        states = total + n_most * o_stride
        s = states + n_most * STATE_BYTES
        n_parts, partial_bytes = get_i32(tile, T.N_PARTS), n_most * o_stride
        partials = get_i64(kv, K.PARTIALS) + head * partial_bytes
        i_partial = get_i32(tile, T.PARTIAL)

        load_queries(record, tile, head, n_rows, q)
        for r in range(n_rows):
            _begin_total(total + r * o_stride, n_vectors)
        run = get_i32(tile, T.RUN)
        end = run + get_i32(tile, T.N_RUNS)
        while run < end:
            first, segment = run, get_i32(get_i64(kv, K.RUNS) + 4 * RUN_WORDS * run, U.SEGMENT)
            while run < end and get_i32(get_i64(kv, K.RUNS) + 4 * RUN_WORDS * run, U.SEGMENT) == segment:
                run += 1
            if n_parts > 1:
                o = partials + i_partial * n_heads * partial_bytes
                i_partial += 1
            segment_sums(record, kv, first, run, n_rows, head, q, o, states, s)
            if n_parts == 1:
                for r in range(n_rows):
                    _join(o + r * o_stride, total + r * o_stride, n_vectors)
        if n_parts > 1:
            counter = get_i64(kv, K.COUNTERS) + 8 * (get_i32(tile, T.GROUP) * n_heads + head)
            if add(counter, 1) < n_parts - 1:
                return
            store(counter, 0)
            i_partial = get_i32(tile, T.PARTIAL) - get_i32(tile, T.SEGMENT)
            for i in range(i_partial, i_partial + get_i32(tile, T.N_SEGMENTS)):
                for r in range(n_rows):
                    _join(partials + i * n_heads * partial_bytes + r * o_stride, total + r * o_stride, n_vectors)
        put_results(record, tile, head, n_rows, total)

    def unit(record: int, step: int, u0: int, u1: int, scratch: int) -> None:
        kv = step + 8 * get_i64(record, A.PART)
        n_tiles = get_i64(kv, K.N_TILES)
        for u in range(u0, u1):
            tile = get_i64(kv, K.TILES) + 4 * TILE_WORDS * (u % n_tiles)
            one_tile(record, kv, tile, u // n_tiles, scratch)

    return unit


_KINDS: tuple[KvType, ...] = ("bf16", "f32", "int8")
KERNELS: Mapping[str, Callable[[Features], Callable[..., Any]]] = MappingProxyType(
    {kind: partial(_unit, kind) for kind in _KINDS}
)
