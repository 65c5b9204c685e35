"""Attention of a tile's rows on one KV head: queries, scores, softmax, weighted sums, results.

Enters: query rows f32, tiles (tile_words.py), K and V in blocks, by the words `A` of attention/words.py. Leaves: rows
f32, or their 8-bit records, or both. A unit is one tile on one KV head: all query heads that share it, times the
tile's rows, are rows of one small product.

    for segment of the tile:                       # 512 positions
        s = scores of every run                    # attention/dots.py; common blocks once for all rows
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

from polyseq.backends.cpu.attention import softmax
from polyseq.backends.cpu.attention.pair_formats import Bf16Dot, pair_format
from polyseq.backends.cpu.attention.query import load_query
from polyseq.backends.cpu.attention.words import STATE_BYTES, TAIL_BYTES, A
from polyseq.backends.cpu.compiler.assemble import object_code
from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.emit import F32, I32, I64, Emit, Value
from polyseq.backends.cpu.ir.memory import copy_row
from polyseq.backends.cpu.kv.layout import BUNDLE, SCALE_DIMS, KvType
from polyseq.backends.cpu.rows.activation import GROUP, N_ROWS, RECORD_BYTES
from polyseq.backends.cpu.rows.quantise import quantise_at
from polyseq.backends.cpu.words.records import K
from polyseq.backends.cpu.words.tile_words import BLOCK, MOST_ROWS, RUN_WORDS, TILE_WORDS, T, U

_LINE = 64


class _Run:
    """The words of one run, and where its scores and weights are."""

    def __init__(self, unit: _Unit, i: Value, s: Value) -> None:
        e, words = unit.e, unit.e.add(unit.kv[K.RUNS], unit.e.mul(i, 4 * RUN_WORDS))
        who, first, self.n, n_listed, offset = (
            e.b.sext(e.load(words, I32, 4 * word), I64) for word in (U.WHO, U.FIRST, U.COUNT, U.N_LISTED, U.OFFSET)
        )
        self.common = e.b.icmp_signed("<", who, e.i64(0))
        self.who, self.blocks = who, e.add(unit.kv[K.LISTED], e.mul(first, 4))
        self.masks = e.add(unit.kv[K.MASKS], e.mul(first, 2 * MOST_ROWS))
        self.stride = e.mul(n_listed, _LINE)  # from row to row of scores
        self.s, self.p = e.add(s, e.mul(offset, _LINE)), e.add(s, e.mul(offset, unit.p_bytes))


class _Unit:
    """What is the same for all tiles of a call: the words, and where in scratch everything is."""

    def __init__(self, e: Emit, kind: KvType, features: Features, record: Value, step: Value, scratch: Value) -> None:
        self.e, self.kind = e, kind
        self.is_int, self.is_bf16 = kind == "int8", isinstance(pair_format(kind, features), Bf16Dot)
        self.p_bytes = _LINE // 2 if self.is_int or self.is_bf16 else _LINE  # weights of a block
        self.a: Mapping[A, Value] = {word: e.load(record, I64, 8 * word) for word in A}
        self.scale = e.load(record, F32, 8 * A.SCALE)
        part = e.add(step, e.mul(self.a[A.PART], 8))
        self.kv: Mapping[K, Value] = {word: e.load(part, I64, 8 * word) for word in K}
        self.n_group = self.a[A.N_GROUP]
        self.padded_k, self.padded_v = self._padded(A.HEAD_K, SCALE_DIMS), self._padded(A.HEAD_V, BLOCK)
        self.n_groups, self.n_vectors = (e.b.udiv(n, e.i64(by)) for n, by in ((self.padded_k, 32), (self.padded_v, 16)))
        self.q_stride, self.o_stride = (e.add(e.mul(n, 4), TAIL_BYTES) for n in (self.padded_k, self.padded_v))
        n_most = e.mul(self.n_group, MOST_ROWS)
        self.partial_bytes = e.mul(n_most, self.o_stride)
        self.q = scratch
        self.o = e.add(self.q, e.mul(n_most, self.q_stride))
        self.total = e.add(self.o, self.partial_bytes)
        self.states = e.add(self.total, self.partial_bytes)
        self.s = e.add(self.states, e.mul(n_most, STATE_BYTES))

    def tile(self, u: Value) -> None:
        """One unit."""
        e, n_tiles = self.e, self.kv[K.N_TILES]
        tile = e.add(self.kv[K.TILES], e.mul(e.b.urem(u, n_tiles), 4 * TILE_WORDS))
        _Tile(self, tile, e.b.udiv(u, n_tiles)).compute()

    def head_start(self, head: Value, offset: A, n_bytes: A) -> Value:
        """Where a head of the layer's K or V begins in block 0."""
        heads = self.e.add(self.kv[K.POOL], self.a[offset])
        return self.e.add(heads, self.e.mul(head, self.e.mul(self.a[n_bytes], BUNDLE)))

    def _padded(self, word: A, multiple: int) -> Value:
        e = self.e
        return e.mul(e.b.udiv(e.add(self.a[word], multiple - 1), e.i64(multiple)), multiple)


class _Tile:
    """One tile on one KV head. Rows are rows of the tile times query heads of the group."""

    def __init__(self, unit: _Unit, tile: Value, head: Value) -> None:
        self.unit, self.e, self._words, self.head = unit, unit.e, tile, head
        self.n_rows = self.e.mul(self.word(T.N_ROWS), unit.n_group)
        self.k = unit.head_start(head, A.K_OFFSET, A.K_BYTES)
        self.v = unit.head_start(head, A.V_OFFSET, A.V_BYTES)

    def word(self, word: Value | int) -> Value:
        return self.e.b.sext(self.e.load(self._words, I32, self.e.mul(self.e.i64(word), 4)), I64)

    def each_row(self, do: Callable[[Value], None]) -> None:
        self.e.each(self.n_rows, lambda r: do(r))

    def o_row(self, base: Value, r: Value) -> Value:
        return self.e.add(base, self.e.mul(r, self.unit.o_stride))

    def compute(self) -> None:
        e, unit = self.e, self.unit
        self.each_row(self._load_query)
        self.each_row(lambda r: softmax.begin_total(e, self.o_row(unit.total, r), unit.n_vectors))
        whole = e.b.icmp_signed("==", self.word(T.N_PARTS), e.i64(1))

        def segment(i: Value, carried: list[Value]) -> list[Value]:
            run = carried[0]
            shared = self._partial(e.add(self.word(T.PARTIAL), i))
            o = e.b.select(whole, unit.o, shared)
            n_runs = e.b.sext(e.load(unit.kv[K.RUNS], I32, e.mul(e.add(e.mul(run, RUN_WORDS), U.N_RUNS), 4)), I64)
            self._segment(run, n_runs, o)
            e.when(whole, lambda: self._join(o))
            return [e.add(run, n_runs)]

        e.loop(self.word(T.N_HERE), [self.word(T.RUN)], segment)
        e.when(whole, lambda: self.each_row(self._put_result))
        e.when(e.b.icmp_signed("!=", self.word(T.N_PARTS), e.i64(1)), self._finish_part)

    def _partial(self, i: Value) -> Value:
        """Where the sums of shared-out segment i are, for this head."""
        e, unit = self.e, self.unit
        n = e.add(e.mul(i, unit.a[A.N_HEAD_KV]), self.head)
        return e.add(unit.kv[K.PARTIALS], e.mul(n, unit.partial_bytes))

    def _finish_part(self) -> None:
        """The last part to come by joins all of them."""
        e, unit = self.e, self.unit
        n = e.add(e.mul(self.word(T.GROUP), unit.a[A.N_HEAD_KV]), self.head)
        counter = e.add(unit.kv[K.COUNTERS], e.mul(n, 8))

        def join_all() -> None:
            e.atomic_exchange(counter, 0)
            first = e.b.sub(self.word(T.PARTIAL), self.word(T.SEGMENT))
            e.each(self.word(T.N_SEGMENTS), lambda i: self._join(self._partial(e.add(first, i))))
            self.each_row(self._put_result)

        before = e.atomic_add(counter, 1)
        e.when(e.b.icmp_signed("==", before, e.b.sub(self.word(T.N_PARTS), e.i64(1))), join_all)

    def _join(self, o: Value) -> None:
        unit = self.unit
        self.each_row(lambda r: softmax.join(self.e, self.o_row(o, r), self.o_row(unit.total, r), unit.n_vectors))

    def _row_and_column(self, r: Value, width: Value) -> tuple[Value, Value]:
        """(row of the ubatch, first column) of row r in rows of n_head * width."""
        e, unit = self.e, self.unit
        t, in_group = e.b.udiv(r, unit.n_group), e.b.urem(r, unit.n_group)
        column = e.mul(e.add(e.mul(self.head, unit.n_group), in_group), width)
        return self.word(e.add(t, T.ROW)), column

    def _load_query(self, r: Value) -> None:
        e, unit = self.e, self.unit
        row, column = self._row_and_column(r, unit.a[A.HEAD_K])
        source = e.add(e.add(unit.a[A.Q], e.mul(row, unit.a[A.Q_STRIDE])), e.mul(column, 4))
        q = e.add(unit.q, e.mul(r, unit.q_stride))
        load_query(e, unit.kind, unit.is_bf16, source, unit.a[A.HEAD_K], unit.scale, q)

    def _segment(self, first: Value, n_runs: Value, o: Value) -> None:
        """o: the rows' sums over one segment, with m and the sum of weights behind each."""
        e, unit = self.e, self.unit

        def each_run(do: Callable[[_Run], None]) -> None:
            e.each(n_runs, lambda i: do(_Run(unit, e.add(first, i), unit.s)))

        def weights(r: Value) -> None:
            self._weigh(each_run, r)
            softmax.clear(e, self.o_row(o, r), unit.n_vectors)

        def end(r: Value) -> None:
            row = self.o_row(o, r)
            if not unit.is_int:
                finite = softmax.is_finite(e, row, unit.n_vectors)
                e.when(e.b.icmp_signed("==", finite, e.i64(0)), lambda: self._guard(each_run, r, row))
            softmax.end_segment(e, row, unit.n_vectors, self._state(r), unit.is_int)

        each_run(self._scores)
        self.each_row(weights)
        each_run(partial(self._sums, o))
        self.each_row(end)

    def _state(self, r: Value) -> Value:
        return self.e.add(self.unit.states, self.e.mul(r, STATE_BYTES))

    def _readers(self, run: _Run) -> tuple[Value, Value]:
        """(how many rows read a run, the first of them)."""
        e, n_group = self.e, self.unit.n_group
        return (
            e.b.select(run.common, self.n_rows, n_group),
            e.b.select(run.common, e.i64(0), e.mul(run.who, n_group)),
        )

    def _scores(self, run: _Run) -> None:
        e, unit = self.e, self.unit
        n, first = self._readers(run)
        q, s = e.add(unit.q, e.mul(first, unit.q_stride)), e.add(run.s, e.mul(first, run.stride))
        e.call(
            unit.a[A.SCORES],
            *(n, q, unit.q_stride, self.k, run.blocks, run.n, s, run.stride, unit.n_groups),
            *(unit.a[A.K_BYTES], unit.a[A.BUNDLE_BYTES]),
        )

    def _sums(self, o: Value, run: _Run) -> None:
        e, unit = self.e, self.unit
        n, first = self._readers(run)
        p, out = e.add(run.p, e.mul(first, run.stride)), self.o_row(o, first)
        e.call(
            unit.a[A.SUMS],
            *(n, p, run.stride, self.v, run.blocks, run.n, out, unit.o_stride, unit.n_vectors),
            *(unit.a[A.V_BYTES], unit.a[A.BUNDLE_BYTES]),
        )

    def _seen_runs(self, each_run: Callable[..., None], r: Value, do: Callable[[_Run, Value, Value], None]) -> None:
        """do(run, byte offset of row r's scores, its masks) for every run that row r reads."""
        e = self.e
        t = e.b.udiv(r, self.unit.n_group)

        def one(run: _Run) -> None:
            reads = e.b.or_(run.common, e.b.icmp_signed("==", run.who, t))
            e.when(reads, lambda: do(run, e.mul(r, run.stride), e.add(run.masks, e.mul(t, 2))))

        each_run(one)

    def _weigh(self, each_run: Callable[..., None], r: Value) -> None:
        """Row r's scores become weights."""
        e, unit, state = self.e, self.unit, self._state(r)

        def peak(run: _Run, at: Value, masks: Value) -> None:
            softmax.find_peak(e, e.add(run.s, at), masks, run.n, state)

        def weigh(run: _Run, at: Value, masks: Value) -> None:
            s = e.add(run.s, at)
            if unit.is_int:
                scales = e.add(self.v, e.mul(unit.padded_v, BLOCK))
                sizes = unit.a[A.V_BYTES], unit.a[A.BUNDLE_BYTES]
                softmax.weigh_scaled(e, s, masks, run.n, state, run.blocks, scales, *sizes)
            elif unit.is_bf16:
                softmax.weigh_bf16(e, s, masks, run.n, state, e.add(run.p, at))
            else:
                softmax.weigh_f32(e, s, masks, run.n, state)

        softmax.begin(e, state)
        self._seen_runs(each_run, r, peak)
        softmax.end_peak(e, state)
        self._seen_runs(each_run, r, weigh)
        if unit.is_int:
            inverse = softmax.end_scaled(e, state)
            self._seen_runs(
                each_run,
                r,
                lambda run, at, _: softmax.round_weights(e, e.add(run.s, at), run.n, e.add(run.p, at), inverse),
            )

    def _guard(self, each_run: Callable[..., None], r: Value, row: Value) -> None:
        """Row r's sums once more without what its masks hide: NaN or infinity may have come from there."""
        e, unit = self.e, self.unit
        softmax.clear(e, row, unit.n_vectors)

        def one(run: _Run, at: Value, masks: Value) -> None:
            p = e.add(run.p, at)
            e.call(
                unit.a[A.GUARDED],
                *(p, masks, self.v, run.blocks, run.n, row, unit.n_vectors),
                *(unit.a[A.V_BYTES], unit.a[A.BUNDLE_BYTES]),
            )

        self._seen_runs(each_run, r, one)

    def _put_result(self, r: Value) -> None:
        e, unit = self.e, self.unit
        values, head_v = self.o_row(unit.total, r), unit.a[A.HEAD_V]
        row, column = self._row_and_column(r, head_v)
        softmax.end_total(e, values, unit.n_vectors)

        def as_rows() -> None:
            out = e.add(e.add(unit.a[A.OUT], e.mul(row, unit.a[A.OUT_STRIDE])), e.mul(column, 4))
            copy_row(e, out, values, head_v)

        def as_records() -> None:
            width = e.mul(e.mul(unit.n_group, unit.a[A.N_HEAD_KV]), head_v)
            block, in_block = e.b.udiv(row, e.i64(N_ROWS)), e.b.urem(row, e.i64(N_ROWS))
            first = e.add(e.mul(block, e.b.udiv(width, e.i64(GROUP))), e.b.udiv(column, e.i64(GROUP)))
            records = e.add(unit.a[A.RECORDS], e.mul(first, RECORD_BYTES))

            def group(g: Value, _: list[Value]) -> list[Value]:
                quantise_at(e, e.add(values, e.mul(g, 4 * GROUP)), e.add(records, e.mul(g, RECORD_BYTES)), in_block)
                return []

            e.loop(e.b.udiv(head_v, e.i64(GROUP)), [], group)

        e.when(e.b.icmp_signed("!=", unit.a[A.OUT], e.i64(0)), as_rows)
        e.when(e.b.icmp_signed("!=", unit.a[A.RECORDS], e.i64(0)), as_records)


def _attention(kind: KvType, features: Features) -> ObjectCode:
    """Pure. void unit(record, step, u0, u1, scratch) for one kind of K and V."""

    def body(e: Emit, record: Value, step: Value, u0: Value, u1: Value, scratch: Value) -> None:
        unit = _Unit(e, kind, features, record, step, scratch)
        e.each(e.b.sub(u1, u0), lambda i: unit.tile(e.add(u0, i)))

    return object_code(body, 5, f"attention_{kind}", features)


_KINDS: tuple[KvType, ...] = ("bf16", "f32", "int8")
KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType(
    {kind: partial(_attention, kind) for kind in _KINDS}
)
