"""What each sequence can see at all: its blocks, in the order of their first position.

Enters: a view's columns and the block table, by the words `P` of tile_words.py. Leaves: per *line* (a stream's one
sequence, or one sequence of a unified cache) a list of entries of three words:

    key << 32 | block        key: the first position of anything in the block; the order of the list
    mask                     bit i: cell i of the block is the sequence's
    first << 32 | last       the least and the largest position among these cells

Which of them a row sees (nothing after itself, nothing before its window) is for tiling.py to say. Where there is no
room for all entries, NEED_ENTRIES says how many there may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from polyseq.backends.cpu.compiler.assemble import object_code
from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.control import Values, Words, either, equal, get_i32, larger, less, while_
from polyseq.backends.cpu.ir.emit import I1, I8, I64, Body, Emit, Value
from polyseq.backends.cpu.words.tile_words import BLOCK, ENTRY_WORDS, P

_NEVER = (1 << 31) - 1
_LOW = 0xFFFFFFFF
_ENTRY_BYTES = 8 * ENTRY_WORDS


def _entry(w: Words, i: Value) -> Value:
    """The address of entry i."""
    return w.e.add(w.get(P.ENTRIES), w.e.mul(i, _ENTRY_BYTES))


def _load(e: Emit, entry: Value) -> Values:
    return [e.load(entry, I64, 8 * word) for word in range(ENTRY_WORDS)]


def _store(e: Emit, entry: Value, words: Values) -> None:
    for i, word in enumerate(words):
        e.store(word, entry, 8 * i)


def _two(e: Emit, high: Value, low: Value) -> Value:
    return e.b.or_(e.b.shl(high, e.i64(32)), low)


def _sort(w: Words, start: Value, stop: Value) -> None:
    """Entries start .. stop - 1 by their first word: one look where they are in order, as they mostly are."""
    e = w.e
    n = e.b.sub(stop, start)

    def look(i: Value, wrong: Values) -> Values:
        at = _entry(w, e.add(start, i))
        out_of_order = less(e, e.load(at, I64, _ENTRY_BYTES), e.load(at, I64))
        return [e.b.or_(wrong[0], e.b.zext(out_of_order, I64))]

    gap = e.loop(e.b.sub(n, e.i64(1)), [e.i64(0)], look)[0]
    # Shell's sort: gaps 1, 4, 13, 40, ... from the largest down; none where nothing is out of order.
    grows = lambda v: e.b.and_(e.b.icmp_signed("!=", gap, e.i64(0)), less(e, e.mul(v[0], 3), n))  # noqa: E731
    largest = while_(e, [gap], grows, lambda v: [e.add(e.mul(v[0], 3), 1)])[0]

    def one_gap(values: Values) -> Values:
        gap = values[0]
        first, step = e.add(start, gap), e.mul(gap, _ENTRY_BYTES)

        def insert(i: Value, _: Values) -> Values:
            here = _entry(w, e.add(first, i))
            words, lowest = _load(e, here), _entry(w, first)

            def moves(v: Values) -> Value:
                inside = e.b.icmp_signed(">=", v[0], lowest)
                # Outside, the entry itself stands in: it is not less than itself.
                before = e.b.select(inside, e.b.sub(v[0], step), here)
                return e.b.and_(inside, less(e, words[0], e.load(before, I64)))

            def move(v: Values) -> Values:
                before = e.b.sub(v[0], step)
                _store(e, v[0], _load(e, before))
                return [before]

            _store(e, while_(e, [here], moves, move)[0], words)
            return []

        e.loop(e.b.sub(stop, first), [], insert)
        return [e.b.udiv(gap, e.i64(3))]

    while_(e, [largest], lambda v: less(e, e.i64(0), v[0]), one_gap)


def _of_streams(e: Emit, address: Value) -> None:
    w = Words(e, address)
    n_kv, room = w.get(P.N_KV), w.get(P.ROOM_ENTRIES)
    n_blocks = e.b.udiv(e.add(n_kv, BLOCK - 1), e.i64(BLOCK))

    def line(i: Value, counts: Values) -> Values:
        start = counts[0]
        cell_pos = e.add(w.get(P.CELL_POS), e.mul(e.mul(i, n_kv), 4))
        block0 = e.mul(w.i32(P.STREAMS, i), w.get(P.STREAM_BLOCKS))
        w.put_i64(P.LINE_FIRST, i, start)

        def block(b: Value, n: Values) -> Values:
            cell0 = e.mul(b, BLOCK)

            def cell(c: Value, so_far: Values) -> Values:
                pos, (mask, first, last) = get_i32(e, cell_pos, e.add(cell0, c)), so_far
                used = e.b.icmp_signed(">=", pos, e.i64(0))
                bit = e.b.select(used, e.b.shl(e.i64(1), c), e.i64(0))
                least = e.b.select(used, e.least(first, pos), first)
                return [e.b.or_(mask, bit), least, larger(e, last, pos)]

            n_cells = e.least(e.i64(BLOCK), e.b.sub(n_kv, cell0))
            mask, first, last = e.loop(n_cells, [e.i64(0), e.i64(_NEVER), e.i64(-1)], cell)
            some = e.b.icmp_signed("!=", mask, e.i64(0))

            def keep() -> None:
                _store(e, _entry(w, n[0]), [_two(e, first, e.add(block0, b)), mask, _two(e, first, last)])

            e.when(e.b.and_(some, less(e, n[0], room)), keep)
            return [e.add(n[0], e.b.zext(some, I64))]

        n = e.loop(n_blocks, [start], block)[0]
        e.when(e.b.icmp_signed("<=", n, room), lambda: _sort(w, start, n))
        return [n]

    _end(w, e.loop(w.get(P.N_LINES), [e.i64(0)], line)[0])


def _end(w: Words, n: Value) -> None:
    w.put_i64(P.LINE_FIRST, w.get(P.N_LINES), n)
    w.put(P.NEED_ENTRIES, n)


def _learn_positions(w: Words) -> None:
    """Positions by place, and every block's least."""
    e, n_kv = w.e, w.get(P.N_KV)

    def forget(cell: Value, _: Values) -> Values:
        place = w.i32(P.PLACE, cell)
        block = e.b.ashr(place, e.i64(4))
        e.when(e.b.icmp_signed(">=", place, e.i64(0)), lambda: w.put_i32(P.BLOCK_KEY, block, e.i64(_NEVER)))
        return []

    def learn(cell: Value, _: Values) -> Values:
        place, pos = w.i32(P.PLACE, cell), get_i32(e, w.get(P.CELL_POS), cell)
        block = e.b.ashr(place, e.i64(4))

        def put() -> None:
            w.put_i32(P.PLACE_POS, place, pos)
            w.put_i32(P.BLOCK_KEY, block, e.least(w.i32(P.BLOCK_KEY, block), pos))

        e.when(e.b.and_(*(e.b.icmp_signed(">=", x, e.i64(0)) for x in (place, pos))), put)
        return []

    e.loop(n_kv, [], forget)
    e.loop(n_kv, [], learn)


def _add_cell(w: Words, cell: Value, n: Value) -> Value:
    """Puts one cell of a sequence into its list; returns how many entries all lists have now."""
    e = w.e
    place, pos = w.i32(P.PLACE, cell), w.i32(P.CELL_POS, cell)
    block = e.b.ashr(place, e.i64(4))
    bit = e.b.shl(e.i64(1), e.b.and_(place, e.i64(BLOCK - 1)))

    def begin() -> Values:
        def write() -> None:
            w.put_i32(P.SEEN, block, e.add(n, 1))
            _store(e, _entry(w, n), [_two(e, w.i32(P.BLOCK_KEY, block), block), bit, _two(e, pos, pos)])

        e.when(less(e, n, w.get(P.ROOM_ENTRIES)), write)
        return [e.add(n, 1)]

    def grow() -> Values:
        entry = _entry(w, e.b.sub(w.i32(P.SEEN, block), e.i64(1)))
        word, mask, span = _load(e, entry)
        first, last = e.least(e.b.ashr(span, e.i64(32)), pos), larger(e, e.b.and_(span, e.i64(_LOW)), pos)
        _store(e, entry, [word, e.b.or_(mask, bit), _two(e, first, last)])
        return [n]

    counts = e.b.and_(*(e.b.icmp_signed(">=", x, e.i64(0)) for x in (place, pos)))
    return either(e, counts, lambda: either(e, equal(e, w.i32(P.SEEN, block), 0), begin, grow), lambda: [n])[0]


def _of_sequences(e: Emit, address: Value) -> None:
    w = Words(e, address)
    _learn_positions(w)
    n_kv, room = w.get(P.N_KV), w.get(P.ROOM_ENTRIES)

    def line(i: Value, counts: Values) -> Values:
        start, members = counts[0], e.add(w.get(P.MEMBERS), e.mul(i, n_kv))
        w.put_i64(P.LINE_FIRST, i, start)

        def eight(c: Value, counts: Values) -> Values:
            """Members among cells 8 c .. 8 c + 7: their bytes are 1, others' 0, so the lowest bit names the next."""
            at = e.mul(c, 8)

            def one(values: Values) -> Values:
                left, n = values
                byte = e.b.lshr(e.instruction("llvm.cttz.i64", I64, left, e.const(I1, 1)), e.i64(3))
                return [e.b.and_(left, e.b.sub(left, e.i64(1))), _add_cell(w, e.add(at, byte), n)]

            some = lambda v: e.b.icmp_signed("!=", v[0], e.i64(0))  # noqa: E731
            return while_(e, [e.load(members, I64, at), counts[0]], some, one)[1:]

        def single(i: Value, counts: Values) -> Values:
            cell = e.add(e.mul(n_eight, 8), i)
            own = e.b.icmp_signed("!=", e.b.zext(e.load(members, I8, cell), I64), e.i64(0))
            return either(e, own, lambda: [_add_cell(w, cell, counts[0])], lambda: counts)

        n_eight = e.b.udiv(n_kv, e.i64(8))
        n = e.loop(n_eight, [start], eight)[0]
        n = e.loop(e.b.urem(n_kv, e.i64(8)), [n], single)[0]

        def forget(j: Value, _: Values) -> Values:
            block = e.b.and_(e.load(_entry(w, e.add(start, j)), I64), e.i64(_LOW))
            w.put_i32(P.SEEN, block, e.i64(0))
            return []

        e.loop(e.b.sub(e.least(n, room), start), [], forget)
        e.when(e.b.icmp_signed("<=", n, room), lambda: _sort(w, start, n))
        return [n]

    _end(w, e.loop(w.get(P.N_LINES), [e.i64(0)], line)[0])


def _kernel(body: Body, name: str) -> Callable[[Features], ObjectCode]:
    return lambda features: object_code(body, 1, f"lines_{name}", features)


KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType(
    {"streams": _kernel(_of_streams, "streams"), "sequences": _kernel(_of_sequences, "sequences")}
)
