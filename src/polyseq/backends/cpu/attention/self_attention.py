"""Attention of the rows of one sequence on each other, of one head: self_attention.rows.

Enters: rows q, k, v f32 and tiles (seq_tiles.py), by the words `Q` of seq_words.py. Leaves: rows f32. A unit is one
tile on one head. Both products are those of linear ops, with K and V as panels made in the worker's own memory:

    K as panels [dim][16 rows], V as panels [row][16 dims]
    for 12 query rows:
        s = q K^T                                  # float_gemm.py; q times scale * log2 e
        p = 2^(s - largest)
        out = p V / sum of p

A sequence is computed from its own rows alone, its tiles follow from its length, and every row count adds in the same
order: a row has the same bits whatever else is in the ubatch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from llvmlite import ir

from polyseq.backends.cpu.compiler.assemble import object_code
from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.emit import F32, I32, I64, Emit, F32x16, I32x16, Value
from polyseq.backends.cpu.ir.transpose import transposed
from polyseq.backends.cpu.linear.units import padded
from polyseq.backends.cpu.rows.seq_words import N_BLOCK, TILE_WORDS, Q
from polyseq.backends.cpu.rows.units import Unit, over_columns, splat_to
from polyseq.backends.cpu.words.records import R, S

_LINE = 64
_LANES = 16
_HIDDEN = -1e30  # the score of a column that is not there


def _rows(e: Emit, record: Value, step: Value, u0: Value, u1: Value, scratch: Value) -> None:
    unit = Unit(e, record, step, scratch)
    n_head, tiles = unit.word(R.N_FIXED), unit.step_word(e.i64(S.SEQ_TILES))

    def one(i: Value) -> None:
        u = e.add(u0, i)
        tile = e.add(tiles, e.mul(e.b.udiv(u, n_head), 4 * TILE_WORDS))
        _Tile(unit, tile, e.b.urem(u, n_head)).compute()

    e.each(e.b.sub(u1, u0), one)


class _Tile:
    """One tile on one head, and where in scratch everything is."""

    def __init__(self, unit: Unit, tile: Value, head: Value) -> None:
        e = unit.e
        self.unit, self.e = unit, e
        self.start, self.n, self.first, self.n_rows = (
            e.b.sext(e.load(tile, I32, 4 * word), I64) for word in range(TILE_WORDS)
        )
        self.head, self.stride = unit.word(Q.HEAD), unit.word(Q.STRIDE)
        self.column = e.mul(e.b.mul(head, self.head), 4)  # bytes from a row to the head's part
        self.n_cell_panels, self.n_dim_panels = (e.b.lshr(e.add(n, _LANES - 1), e.i64(4)) for n in (self.n, self.head))
        self.s_stride, self.o_stride = (e.mul(n, _LINE) for n in (self.n_cell_panels, self.n_dim_panels))
        self.k_panel, self.v_panel = e.mul(self.head, _LINE), e.mul(self.n, _LINE)
        self.q = unit.scratch
        self.o = e.add(self.q, e.mul(self.o_stride, N_BLOCK))
        self.s = e.add(self.o, e.mul(self.o_stride, N_BLOCK))
        self.k = e.add(self.s, e.mul(self.s_stride, N_BLOCK))
        self.v = e.add(self.k, e.b.mul(self.k_panel, self.n_cell_panels))

    def compute(self) -> None:
        e = self.e
        e.each(self.n_cell_panels, self._pack_k)
        e.each(self.n, self._pack_v)

        def block(i: Value) -> None:
            before = e.mul(i, N_BLOCK)
            self._block(e.add(self.first, before), e.least(e.i64(N_BLOCK), e.b.sub(self.n_rows, before)))

        e.each(e.b.udiv(e.add(self.n_rows, N_BLOCK - 1), e.i64(N_BLOCK)), block)

    def _row(self, word: Q, row: Value) -> Value:
        """Where the head's part of a row begins."""
        return self.e.add(self.unit.row(word, Q.STRIDE, row), self.column)

    def _pack_k(self, panel: Value) -> None:
        """Changes the panel: 16 rows of K side by side; after the last row, the last row again."""
        e, first = self.e, self.e.mul(panel, _LANES)
        last = e.b.sub(self.n, e.i64(1))
        rows = [self._row(Q.K, e.add(self.start, e.least(e.add(first, j), last))) for j in range(_LANES)]
        out, n_whole = e.add(self.k, e.b.mul(panel, self.k_panel)), e.b.lshr(self.head, e.i64(4))

        def sixteen(i: Value) -> None:
            at = e.mul(i, _LINE)
            for d, vector in enumerate(transposed(e, [e.load(row, F32x16, at) for row in rows])):
                e.store(vector, out, e.add(e.mul(at, _LANES), _LINE * d))

        def single(i: Value) -> None:
            d = e.add(e.mul(n_whole, _LANES), i)
            for j, row in enumerate(rows):
                e.store(e.load(row, F32, e.mul(d, 4)), out, e.add(e.mul(d, _LINE), 4 * j))

        e.each(n_whole, sixteen)
        e.each(e.b.and_(self.head, e.i64(_LANES - 1)), single)

    def _pack_v(self, row: Value) -> None:
        """Changes one row of all panels of V; what is behind its last dim stays what it was, and reaches nothing."""
        e, source, out = self.e, self._row(Q.V, self.e.add(self.start, row)), self.e.add(self.v, self.e.mul(row, _LINE))
        n_whole = e.b.lshr(self.head, e.i64(4))
        e.each(n_whole, lambda i: e.store(e.load(source, F32x16, e.mul(i, _LINE)), out, e.b.mul(i, self.v_panel)))
        rest, last = e.add(source, e.mul(n_whole, _LINE)), e.add(out, e.b.mul(n_whole, self.v_panel))
        e.each(
            e.b.and_(self.head, e.i64(_LANES - 1)), lambda i: e.store(e.load(rest, F32, e.mul(i, 4)), last, e.mul(i, 4))
        )

    def _block(self, row: Value, n: Value) -> None:
        """Changes up to 12 rows of the result."""
        e, unit = self.e, self.unit
        scale = unit.bits(Q.SCALE)

        def load_query(r: Value) -> None:
            source, q = self._row(Q.Q, e.add(row, r)), e.add(self.q, e.b.mul(r, self.o_stride))
            over_columns(
                e,
                self.head,
                lambda at, kind: e.store(e.b.fmul(e.load(source, kind, at), splat_to(e, scale, kind)), q, at),
            )

        def end(r: Value) -> None:
            inverse = self._weigh(e.add(self.s, e.b.mul(r, self.s_stride)))
            e.store(inverse, e.add(self.q, e.b.mul(r, self.o_stride)))  # its query is not read any more

        def put(r: Value) -> None:
            inverse = e.load(e.add(self.q, e.b.mul(r, self.o_stride)), F32)
            source, out = e.add(self.o, e.b.mul(r, self.o_stride)), self._row(Q.OUT, e.add(row, r))
            over_columns(
                e,
                self.head,
                lambda at, kind: e.store(e.b.fmul(e.load(source, kind, at), splat_to(e, inverse, kind)), out, at),
            )

        e.each(n, load_query)
        self._times(
            n, self.q, self.o_stride, self.head, self.k, self.k_panel, self.n_cell_panels, self.s, self.s_stride
        )
        e.each(n, end)
        self._times(n, self.s, self.s_stride, self.n, self.v, self.v_panel, self.n_dim_panels, self.o, self.o_stride)
        e.each(n, put)

    def _times(
        self,
        n: Value,
        x: Value,
        x_stride: Value,
        n_in: Value,
        panels: Value,
        panel_bytes: Value,
        n_panels: Value,
        out: Value,
        out_stride: Value,
    ) -> None:
        """Changes n rows of out: x times all panels."""
        e, unit, n_rows = self.e, self.unit, padded(self.e, n)

        def some(i: Value, gemm: Q, *more: Value) -> None:
            panel, place = e.add(panels, e.b.mul(i, panel_bytes)), e.add(out, e.mul(i, _LINE))
            e.call(unit.word(gemm), n_rows, x, panel, place, out_stride, n_in, e.i64(0), x_stride, *more)

        n_pairs = e.b.lshr(n_panels, e.i64(1))
        e.each(n_pairs, lambda i: some(e.mul(i, 2), Q.PAIR_GEMM, panel_bytes))
        e.each(e.b.and_(n_panels, e.i64(1)), lambda _: some(e.mul(n_pairs, 2), Q.GEMM))

    def _weigh(self, s: Value) -> Value:
        """Changes a row's scores into weights; 1 / their sum, NaN where a score is not finite."""
        e, zero = self.e, self.e.const(F32x16, 0.0)
        n_last = e.b.sub(self.n, e.mul(e.b.sub(self.n_cell_panels, e.i64(1)), _LANES))
        last = e.add(s, e.mul(e.b.sub(self.n_cell_panels, e.i64(1)), _LINE))
        lanes = ir.Constant(I32x16, list(range(_LANES)))
        is_there = e.b.icmp_signed("<", lanes, e.splat(e.b.trunc(n_last, I32)))
        e.store(e.b.select(is_there, e.load(last, F32x16), e.const(F32x16, _HIDDEN)), last)

        def larger(i: Value, carried: list[Value]) -> list[Value]:
            return [e.maximum(carried[0], e.load(s, F32x16, e.mul(i, _LINE)))]

        def weigh(i: Value, carried: list[Value]) -> list[Value]:
            at = e.mul(i, _LINE)
            x = e.load(s, F32x16, at)
            weight = e.exp2(e.b.fsub(x, peak))
            e.store(weight, s, at)
            return [e.b.fadd(carried[0], e.fma(x, zero, weight))]  # x * 0 is NaN where x is not finite

        peak = e.splat(e.max(e.loop(self.n_cell_panels, [e.const(F32x16, _HIDDEN)], larger)[0]))
        total = e.loop(self.n_cell_panels, [zero], weigh)[0]
        return e.b.fdiv(e.const(F32, 1.0), e.sum(total))


def _compiled(features: Features) -> ObjectCode:
    return object_code(_rows, 5, f"self_attention_rows_{features.isa.name}", features)


KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType({"rows": _compiled})
