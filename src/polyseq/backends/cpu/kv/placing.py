"""The block table: where in memory each cell of a unified cache is, for many sequences side by side.

Enters: a view's columns and the table as the last run left it, by the words `P` of tile_words.py. Leaves: the table,
and each row's place. `memory` numbers cells as it likes; sequences decoding in turn get cells in turn. Read in that
order, a block of 16 cells would hold 16 sequences, and each of them would read all blocks. So a row goes next to the
cell before it in its own sequence:

    cell      0  1  2  3  4  5  6  7  8         place   block 0: A A A A A . .     block 1: B B B B . .
    sequence  A  B  A  B  A  B  A  B  A

Sequences that share a prefix share its blocks: the first to go on takes the rest of the last block, others begin a new
one. A cell that became free leaves its place; an empty block goes on a stack, and the last one freed is used first, so
memory is taken only as it is needed. When no block is left a row takes any free place: slower to read, never wrong.
What was in a place when the table was last marked stays there until the next mark: a failed call finds it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from polyseq.backends.cpu.compiler.assemble import object_code
from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.control import Values, Words, either, equal, larger, less, while_
from polyseq.backends.cpu.ir.emit import I8, I64, Body, Emit, Value
from polyseq.backends.cpu.words.tile_words import BLOCK, P

_UNKNOWN = -2  # a sequence whose last cell was not looked for yet


def _not_negative(e: Emit, x: Value) -> Value:
    return e.b.icmp_signed(">=", x, e.i64(0))


def _is_free(w: Words, place: Value) -> Value:
    """Nothing is there, and nothing was when the table was marked."""
    e = w.e
    kept = e.b.zext(e.load(w.get(P.KEPT), I8, place), I64)
    return e.b.and_(less(e, w.i32(P.HOLDS, place), 0), equal(e, kept, 0))


def _release(w: Words, cell: Value) -> None:
    """Takes a cell out of its place, if it has one. A block that is kept goes on the stack with the next mark."""
    e, place = w.e, w.i32(P.PLACE, cell)

    def leave() -> None:
        block = e.b.ashr(place, e.i64(4))
        w.put_i32(P.PLACE, cell, e.i64(-1))
        w.put_i32(P.HOLDS, place, e.i64(-1))
        left = e.b.sub(w.i32(P.N_HELD, block), e.i64(1))
        w.put_i32(P.N_HELD, block, left)

        def push() -> None:
            w.put_i32(P.FREE, w.get(P.N_FREE), block)
            w.put(P.N_FREE, e.add(w.get(P.N_FREE), 1))

        e.when(e.b.and_(equal(e, left, 0), equal(e, w.i32(P.N_KEPT, block), 0)), push)

    e.when(_not_negative(e, place), leave)


def _new_place(w: Words) -> Values:
    """The first place of a free block, else any free place: there are more places than can be held and kept."""
    e, n_free = w.e, w.get(P.N_FREE)

    def pop() -> Values:
        last = e.b.sub(n_free, e.i64(1))
        w.put(P.N_FREE, last)
        return [e.mul(w.i32(P.FREE, last), BLOCK)]

    def search() -> Values:
        return while_(e, [e.i64(0)], lambda v: e.b.not_(_is_free(w, v[0])), lambda v: [e.add(v[0], 1)])

    return either(e, less(e, e.i64(0), n_free), pop, search)


def _settle(w: Words, cell: Value, before: Value) -> Value:
    """Gives a cell without a place one: right after `before`, the cell before it (-1: none), where that is free."""
    e = w.e
    after = e.add(either(e, _not_negative(e, before), lambda: [w.i32(P.PLACE, before)], lambda: [e.i64(-1)])[0], 1)
    # The last place of a block is followed by none; 0 follows no place.
    in_block = e.b.icmp_signed("!=", e.b.and_(after, e.i64(BLOCK - 1)), e.i64(0))
    follows = e.b.and_(in_block, _is_free(w, after))
    place = either(e, follows, lambda: [after], lambda: _new_place(w))[0]
    block = e.b.ashr(place, e.i64(4))
    w.put_i32(P.PLACE, cell, place)
    w.put_i32(P.HOLDS, place, cell)
    w.put_i32(P.N_HELD, block, e.add(w.i32(P.N_HELD, block), 1))
    e.store(e.const(I8, 1), w.get(P.TOUCHED), block)
    w.put(P.N_PLACED, larger(e, w.get(P.N_PLACED), e.add(cell, 1)))
    return place


def _last_before(w: Words, line: Value, pos: Value) -> Values:
    """The cell of a sequence, among those that have a place, with the largest position below pos; -1: none.

    From the end, where it mostly is; eight cells of others at once are passed over.
    """
    e, n_kv = w.e, w.get(P.N_KV)
    members = e.add(w.get(P.MEMBERS), e.mul(line, n_kv))

    def look(cell: Value, best: Value, best_pos: Value) -> Values:
        at = w.i32(P.CELL_POS, cell)
        own = e.b.icmp_signed("!=", e.b.zext(e.load(members, I8, cell), I64), e.i64(0))
        better = e.b.and_(less(e, best_pos, at), less(e, at, pos))
        takes = e.b.and_(e.b.and_(own, _not_negative(e, w.i32(P.PLACE, cell))), better)
        return [e.b.sub(cell, e.i64(1)), e.b.select(takes, cell, best), e.b.select(takes, at, best_pos)]

    def cells(values: Values) -> Values:
        cell, best, best_pos = values
        eight = either(
            e,
            e.b.icmp_signed(">=", cell, e.i64(7)),
            lambda: [e.load(members, I64, e.b.sub(cell, e.i64(7)))],
            lambda: [e.i64(1)],
        )[0]
        skip = lambda: [e.b.sub(cell, e.i64(8)), best, best_pos]  # noqa: E731
        return either(e, equal(e, eight, 0), skip, lambda: look(cell, best, best_pos))

    def go_on(values: Values) -> Value:
        return e.b.and_(_not_negative(e, values[0]), less(e, e.add(values[2], 1), pos))

    return while_(e, [e.b.sub(n_kv, e.i64(1)), e.i64(-1), e.i64(-1)], go_on, cells)[1:2]


def _place_rows(e: Emit, address: Value) -> None:
    w = Words(e, address)
    n_rows, n_kv, n_placed = w.get(P.N_ROWS), w.get(P.N_KV), w.get(P.N_PLACED)

    def sweep(cell: Value, _: Values) -> Values:
        used = either(
            e,
            less(e, cell, n_kv),
            lambda: [e.b.zext(_not_negative(e, w.i32(P.CELL_POS, cell)), I64)],
            lambda: [e.i64(0)],
        )[0]
        e.when(equal(e, used, 0), lambda: _release(w, cell))
        return []

    e.loop(n_placed, [], sweep)
    w.put(P.N_PLACED, e.least(n_placed, n_kv))
    e.each(n_rows, lambda i: _release(w, w.i32(P.CELLS, i)))
    e.each(w.get(P.N_LINES), lambda line: w.put_i64(P.TAIL, line, e.i64(_UNKNOWN)))

    def row(i: Value, _: Values) -> Values:
        line, cell = w.i64(P.ROW_LINE, i), w.i32(P.CELLS, i)
        tail = w.i64(P.TAIL, line)
        known = e.b.icmp_signed("!=", tail, e.i64(_UNKNOWN))
        before = either(e, known, lambda: [tail], lambda: _last_before(w, line, w.i32(P.POS, i)))[0]
        w.put_i32(P.ROW_PLACE, i, _settle(w, cell, before))
        w.put_i64(P.TAIL, line, cell)
        return []

    e.loop(n_rows, [], row)


def _place_in_streams(e: Emit, address: Value) -> None:
    """Without a table a stream's cells follow each other: a stream has one sequence."""
    w = Words(e, address)
    n_places = e.mul(w.get(P.STREAM_BLOCKS), BLOCK)

    def row(i: Value, _: Values) -> Values:
        place = e.add(e.mul(w.i32(P.STREAMS, w.i64(P.ROW_LINE, i)), n_places), w.i32(P.CELLS, i))
        w.put_i32(P.ROW_PLACE, i, place)
        e.store(e.const(I8, 1), w.get(P.TOUCHED), e.b.ashr(place, e.i64(4)))
        return []

    e.loop(w.get(P.N_ROWS), [], row)


def _kernel(body: Body, name: str) -> Callable[[Features], ObjectCode]:
    return lambda features: object_code(body, 1, f"placing_{name}", features)


KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType(
    {
        "rows": _kernel(_place_rows, "rows"),
        "streams": _kernel(_place_in_streams, "streams"),
    }
)
