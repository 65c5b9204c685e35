"""Tiles: up to four query rows that read the same blocks, with their common list, own lists and masks.

Enters: groups of rows with their positions, and what every sequence can see (lines.py). Leaves: tiles, runs, listed
blocks and masks as tile_words.py draws them. The lists of a group's rows are merged in order of their keys; a block
that three rows see, or all of a smaller tile, is listed once for all; others wait in OWN and are listed row by row.
Where one segment of a group lists too much at once, its rows become tiles of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from polyseq.backends.cpu.compiler.assemble import object_code
from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.control import (
    Values,
    Words,
    either,
    equal,
    get_i32,
    larger,
    less,
    put_i32,
    while_,
)
from polyseq.backends.cpu.ir.emit import I64, Emit, Value
from polyseq.backends.cpu.words.tile_words import (
    BLOCK,
    ENTRY_WORDS,
    MOST_LISTED,
    MOST_ROWS,
    RUN_WORDS,
    SEGMENT_SHIFT,
    TILE_WORDS,
    P,
    T,
    U,
)

_NONE = (1 << 63) - 1
_ENOUGH = 3  # rows that make a block common
_LOW = 0xFFFFFFFF
_MASK = 0xFFFF


class _Tiling:
    """The kernel under construction. `w`: the words P of a plan."""

    def __init__(self, e: Emit, w: Words) -> None:
        self.e, self.w = e, w

    # ---- lists and runs --------------------------------------------------------------------------------

    def _list_block(self, block: Value, masks: Value, who: Value) -> None:
        """Adds a block to the list: to the last run where that is the same rows' in the same segment."""
        e, w = self.e, self.w
        n, n_runs = w.get(P.NEED_LISTED), w.get(P.NEED_RUNS)
        w.put(P.NEED_LISTED, e.add(n, 1))

        def write() -> None:
            w.put_i32(P.LISTED, n, block)
            w.put_i64(P.MASKS, n, masks)

        e.when(less(e, n, w.get(P.ROOM_LISTED)), write)
        started = e.b.and_(less(e, w.get(P.SEGMENT_RUN), n_runs), less(e, n_runs, e.add(w.get(P.ROOM_RUNS), 1)))
        # Without a last run the first of all is looked at, and not used.
        last = self._run(e.b.select(started, e.b.sub(n_runs, e.i64(1)), e.i64(0)))
        again = e.b.and_(started, equal(e, get_i32(e, last, U.WHO), who))

        def grow() -> Values:
            put_i32(e, last, U.COUNT, e.add(get_i32(e, last, U.COUNT), 1))
            return []

        def begin() -> Values:
            w.put(P.NEED_RUNS, e.add(n_runs, 1))
            e.when(less(e, n_runs, w.get(P.ROOM_RUNS)), lambda: self._begin_run(n_runs, n, who))
            return []

        either(e, again, grow, begin)

    def _begin_run(self, i: Value, first: Value, who: Value) -> None:
        e, w, run = self.e, self.w, self._run(i)
        put_i32(e, run, U.WHO, who)
        put_i32(e, run, U.FIRST, first)
        put_i32(e, run, U.COUNT, 1)
        put_i32(e, run, U.SEGMENT, w.get(P.SEGMENT))
        put_i32(e, run, U.OFFSET, e.b.sub(first, w.get(P.SEGMENT_LISTED)))

    def _list_own(self, n_own: Value, n_rows: Value) -> None:
        """Lists what waits in OWN, row by row."""
        e, w = self.e, self.w

        def row(t: Value, _: Values) -> Values:
            bits = e.b.shl(e.i64(_MASK), e.mul(t, 16))

            def entry(i: Value, _: Values) -> Values:
                mask = e.b.and_(w.i64(P.OWN, e.add(e.mul(i, 2), 1)), bits)
                seen = e.b.icmp_signed("!=", mask, e.i64(0))
                e.when(seen, lambda: self._list_block(w.i64(P.OWN, e.mul(i, 2)), mask, t))
                return []

            e.loop(n_own, [], entry)
            return []

        e.loop(n_rows, [], row)

    def _end_segment(self) -> None:
        """Tells a segment's runs what they share, and begins the next."""
        e, w = self.e, self.w
        first, n_runs, n_listed = w.get(P.SEGMENT_RUN), w.get(P.NEED_RUNS), w.get(P.NEED_LISTED)

        def tell(i: Value) -> None:
            run = self._run(e.add(first, i))
            put_i32(e, run, U.N_LISTED, e.b.sub(n_listed, w.get(P.SEGMENT_LISTED)))
            put_i32(e, run, U.N_RUNS, e.b.sub(n_runs, first))

        fits = less(e, n_runs, e.add(w.get(P.ROOM_RUNS), 1))
        e.when(fits, lambda: e.each(e.b.sub(n_runs, first), tell))
        w.put(P.SEGMENT_RUN, n_runs)
        w.put(P.SEGMENT_LISTED, n_listed)
        w.put(P.SEGMENT, e.add(w.get(P.SEGMENT), 1))

    def _run(self, i: Value) -> Value:
        return self.e.add(self.w.get(P.RUNS), self.e.mul(i, 4 * RUN_WORDS))

    # ---- what rows see ---------------------------------------------------------------------------------

    def _row(self, i: Value) -> tuple[Value, Value, Value]:
        """(line, position, last position that it sees) of a row of ORDER."""
        row = self.w.i64(P.ORDER, i)
        return self.w.i64(P.ROW_LINE, row), self.w.i32(P.POS, row), self.w.i32(P.LAST_SEEN, row)

    def _seen_cells(self, line: Value, entry: Value, pos: Value, most: Value) -> Value:
        """The mask of an entry as a row of its line at `pos`, which sees positions to `most`, sees it."""
        e, w = self.e, self.w
        words = e.add(w.get(P.ENTRIES), e.mul(entry, 8 * ENTRY_WORDS))
        block, mask, span = (e.load(words, I64, 8 * i) for i in range(ENTRY_WORDS))
        first, last = e.b.ashr(span, e.i64(32)), e.b.and_(span, e.i64(_LOW))
        n_swa = w.get(P.N_SWA)
        least = e.b.select(equal(e, n_swa, 0), e.i64(0), e.add(e.b.sub(pos, n_swa), 1))
        whole = e.b.and_(e.b.icmp_signed(">=", first, least), e.b.icmp_signed("<=", last, most))
        positions = e.add(self._positions(line), e.mul(e.b.and_(block, e.i64(_LOW)), 4 * BLOCK))

        def cell(i: Value, seen: Values) -> Values:
            bit = e.b.and_(mask, e.b.shl(e.i64(1), i))

            def look() -> Values:
                at = get_i32(e, positions, i)
                inside = e.b.and_(e.b.icmp_signed(">=", at, least), e.b.icmp_signed("<=", at, most))
                return [e.b.or_(seen[0], e.b.select(inside, bit, e.i64(0)))]

            return either(e, equal(e, bit, 0), lambda: [seen[0]], look)

        return either(e, whole, lambda: [mask], lambda: e.loop(BLOCK, [e.i64(0)], cell))[0]

    def _positions(self, line: Value) -> Value:
        """Where the position of place 0 would be, as the line's places count."""
        e, w = self.e, self.w

        def of_stream() -> Values:
            place0 = e.mul(e.mul(w.i32(P.STREAMS, line), w.get(P.STREAM_BLOCKS)), BLOCK)
            return [e.add(w.get(P.CELL_POS), e.mul(e.b.sub(e.mul(line, w.get(P.N_KV)), place0), 4))]

        return either(e, equal(e, w.get(P.MEMBERS), 0), of_stream, lambda: [w.get(P.PLACE_POS)])[0]

    # ---- merging ---------------------------------------------------------------------------------------

    def _begin(self, r0: Value, n_rows: Value) -> Value:
        """Sets the cursors; returns the largest position that any row of the tile sees."""
        e, w = self.e, self.w

        def row(t: Value, most: Values) -> Values:
            line, _, last_seen = self._row(e.add(r0, t))
            w.put(e.add(t, P.CURSOR), w.i64(P.LINE_FIRST, line))
            w.put(e.add(t, P.END), w.i64(P.LINE_FIRST, e.add(line, 1)))
            return [larger(e, most[0], last_seen)]

        most = e.loop(n_rows, [e.i64(-1)], row)[0]
        w.put(P.SEGMENT_RUN, w.get(P.NEED_RUNS))
        w.put(P.SEGMENT_LISTED, w.get(P.NEED_LISTED))
        w.put(P.SEGMENT, -1)
        return most

    def _next_block(self, n_rows: Value) -> Value:
        """The least first word at the cursors; _NONE at the end."""
        e, w = self.e, self.w

        def row(t: Value, least: Values) -> Values:
            cursor = w.get(e.add(t, P.CURSOR))
            here = less(e, cursor, w.get(e.add(t, P.END)))
            word = e.b.select(here, w.i64(P.ENTRIES, e.mul(cursor, ENTRY_WORDS)), e.i64(_NONE))
            return [e.least(least[0], word)]

        return e.loop(n_rows, [e.i64(_NONE)], row)[0]

    def _masks(self, r0: Value, n_rows: Value, word: Value) -> Values:
        """(16 bits per row: what each sees of the block `word`; how many see some). Moves the cursors past it."""
        e, w = self.e, self.w

        def row(t: Value, so_far: Values) -> Values:
            cursor = w.get(e.add(t, P.CURSOR))
            here = equal(e, w.i64(P.ENTRIES, e.mul(cursor, ENTRY_WORDS)), word)

            def look() -> Values:
                line, pos, last_seen = self._row(e.add(r0, t))
                w.put(e.add(t, P.CURSOR), e.add(cursor, 1))
                seen = self._seen_cells(line, cursor, pos, last_seen)
                some = e.b.zext(e.b.icmp_signed("!=", seen, e.i64(0)), I64)
                return [e.b.or_(so_far[0], e.b.shl(seen, e.mul(t, 16))), e.add(so_far[1], some)]

            inside = e.b.and_(here, less(e, cursor, w.get(e.add(t, P.END))))
            return either(e, inside, look, lambda: so_far)

        return e.loop(n_rows, [e.i64(0), e.i64(0)], row)

    def list_tile(self, r0: Value, n_rows: Value) -> Value:
        """Lists all that these rows of ORDER see; returns 1, or 0: a segment has too many blocks for several rows."""
        e = self.e
        most = self._begin(r0, n_rows)

        def block(values: Values) -> Values:
            segment, n_listed, n_own = values[:3]
            word = self._next_block(n_rows)
            word = e.b.select(less(e, most, e.b.ashr(word, e.i64(32))), e.i64(_NONE), word)
            masks, n_see = self._masks(r0, n_rows, word)
            ends = equal(e, word, _NONE)
            return either(
                e,
                e.b.and_(equal(e, n_see, 0), e.b.not_(ends)),
                lambda: [segment, n_listed, n_own, e.i64(1)],
                lambda: self._add(n_rows, segment, n_listed, n_own, word, masks, n_see),
            )

        start = [e.i64(-1), e.i64(0), e.i64(0), e.i64(1)]
        return while_(e, start, lambda v: equal(e, v[3], 1), block)[3]

    def _add(
        self, n_rows: Value, segment: Value, n_listed: Value, n_own: Value, word: Value, masks: Value, n_see: Value
    ) -> Values:
        """One more block, or the end: (segment, blocks listed in it, blocks waiting, state).

        State 1: there may be more, 2: all is listed, 0: too much for several rows.
        """
        e, w = self.e, self.w
        ends = equal(e, word, _NONE)
        all_see = e.b.or_(e.b.icmp_signed(">=", n_see, e.i64(_ENOUGH)), equal(e, n_see, n_rows))
        n_more = e.b.select(all_see, e.i64(1), n_see)
        its_segment = e.b.ashr(word, e.i64(32 + SEGMENT_SHIFT))
        new = e.b.icmp_signed("!=", its_segment, segment)
        full = e.b.and_(e.b.not_(new), less(e, e.i64(MOST_LISTED), e.add(n_listed, n_more)))
        begins = e.b.or_(new, full)
        too_much = e.b.and_(full, less(e, e.i64(1), n_rows))

        def add() -> Values:
            lists = e.b.or_(begins, all_see)
            e.when(lists, lambda: self._list_own(n_own, n_rows))
            e.when(begins, self._end_segment)
            waiting = e.b.select(lists, e.i64(0), n_own)

            def wait() -> Values:
                w.put_i64(P.OWN, e.mul(waiting, 2), e.b.and_(word, e.i64(_LOW)))
                w.put_i64(P.OWN, e.add(e.mul(waiting, 2), 1), masks)
                return [e.add(waiting, 1)]

            def common() -> Values:
                lists_it = e.b.not_(ends)
                e.when(lists_it, lambda: self._list_block(e.b.and_(word, e.i64(_LOW)), masks, e.i64(-1)))
                return [waiting]

            waits = e.b.not_(e.b.or_(all_see, ends))
            now = either(e, waits, wait, common)[0]
            n_now = e.add(e.b.select(begins, e.i64(0), n_listed), n_more)
            return [its_segment, n_now, now, e.b.select(ends, e.i64(2), e.i64(1))]

        return either(e, too_much, lambda: [segment, n_listed, n_own, e.i64(0)], add)

    # ---- tiles -----------------------------------------------------------------------------------------

    def group(self, r0: Value, n_rows: Value) -> None:
        """Rows r0 .. of ORDER as one tile, or as tiles of a row each."""
        e, w = self.e, self.w
        marks = {word: w.get(word) for word in (P.NEED_LISTED, P.NEED_RUNS)}

        def attempt(values: Values) -> Values:
            done, n = values
            run = w.get(P.NEED_RUNS)
            fits = self.list_tile(e.add(r0, done), n)

            def keep() -> Values:
                self._add_tile(e.add(r0, done), n, run)
                return [e.add(done, n), n]

            def narrow() -> Values:
                for word, value in marks.items():
                    w.put(word, value)
                return [e.i64(0), e.i64(1)]

            return either(e, equal(e, fits, 0), narrow, keep)

        while_(e, [e.i64(0), n_rows], lambda v: less(e, v[0], n_rows), attempt)

    def _add_tile(self, r0: Value, n_rows: Value, first_run: Value) -> None:
        e, w = self.e, self.w
        i = w.get(P.NEED_TILES)
        w.put(P.NEED_TILES, e.add(i, 1))
        tile = e.add(w.get(P.TILES), e.mul(i, 4 * TILE_WORDS))
        n_segments = w.get(P.SEGMENT)  # the end was counted as one more
        last = e.b.sub(n_rows, e.i64(1))
        words: dict[int, Value | int] = {
            T.N_ROWS: n_rows,
            T.RUN: first_run,
            T.N_RUNS: e.b.sub(w.get(P.NEED_RUNS), first_run),
            T.SEGMENT: 0,
            T.N_PARTS: 1,
            T.GROUP: 0,
            T.PARTIAL: 0,
            T.N_SEGMENTS: n_segments,
            T.N_HERE: n_segments,
            **{T.ROW + t: w.i64(P.ORDER, e.add(r0, e.least(e.i64(t), last))) for t in range(MOST_ROWS)},
        }
        for word, value in words.items():
            put_i32(e, tile, word, value)


def _tiles(e: Emit, address: Value) -> None:
    w = Words(e, address)
    for word in (P.NEED_LISTED, P.NEED_RUNS, P.NEED_TILES):
        w.put(word, 0)

    def group(i: Value, _: Values) -> Values:
        first = w.i64(P.GROUP_FIRST, i)
        _Tiling(e, w).group(first, e.b.sub(w.i64(P.GROUP_FIRST, e.add(i, 1)), first))
        return []

    e.loop(w.get(P.N_TILE_GROUPS), [], group)


KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType(
    {"tiles": lambda features: object_code(_tiles, 1, "tiling_tiles", features)}
)
