"""Tiles: up to four query rows that read the same blocks, with their common list, own lists and masks.

Enters: rows with their positions, and what every sequence can see (lines.py). Leaves: tiles, runs, listed blocks and
masks as tile_words.py draws them. Rows of one sequence make a tile; so do rows of sequences that begin with the same
block. A block that three rows see, or all of a smaller tile, is listed once for all; others are listed per row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from polyseq.backends.cpu.features import Features
from polyseq.backends.cpu.memory import get_i32, get_i64, put_i32, put_i64
from polyseq.backends.cpu.numba_build import part
from polyseq.backends.cpu.tile_words import (
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
_LINE_SHIFT, _BLOCK_SHIFT = 24, 40
_LOW = 0xFFFFFFFF


@part
def _order_rows(w: int) -> None:
    """ORDER: rows by (first block of their sequence, sequence, row), so that those who may share are neighbours."""
    order, firsts, n_rows = get_i64(w, P.ORDER), get_i64(w, P.LINE_FIRST), get_i64(w, P.N_ROWS)
    sorted_ = 1
    for i in range(n_rows):
        line = get_i64(get_i64(w, P.ROW_LINE), i)
        key = (_first_block(w, line) << _BLOCK_SHIFT) | (line << _LINE_SHIFT) | i
        put_i64(order, i, key)
        if i > 0 and get_i64(order, i - 1) > key:
            sorted_ = 0
    if sorted_ == 0:
        _sort(order, n_rows)
    for i in range(n_rows):
        put_i64(order, i, get_i64(order, i) & ((1 << _LINE_SHIFT) - 1))


@part
def _sort(values: int, n: int) -> None:
    """Shell's sort."""
    gap = 1
    while gap * 3 < n:
        gap = gap * 3 + 1
    while gap > 0:
        for i in range(gap, n):
            value, j = get_i64(values, i), i
            while j >= gap and get_i64(values, j - gap) > value:
                put_i64(values, j, get_i64(values, j - gap))
                j -= gap
            put_i64(values, j, value)
        gap //= 3


@part
def _first_block(w: int, line: int) -> int:
    i = get_i64(get_i64(w, P.LINE_FIRST), line)
    if i == get_i64(get_i64(w, P.LINE_FIRST), line + 1):
        return 0
    return get_i64(get_i64(w, P.ENTRIES), i * ENTRY_WORDS) & _LOW


@part
def _line(w: int, i: int) -> int:
    return get_i64(get_i64(w, P.ROW_LINE), get_i64(get_i64(w, P.ORDER), i))


@part
def _pos(w: int, i: int) -> int:
    return get_i32(get_i64(w, P.POS), get_i64(get_i64(w, P.ORDER), i))


@part
def _seen_cells(w: int, line: int, entry: int, pos: int) -> int:
    """The mask of an entry as a row of its line at `pos` sees it."""
    entries = get_i64(w, P.ENTRIES)
    mask, span = get_i64(entries, entry * ENTRY_WORDS + 1), get_i64(entries, entry * ENTRY_WORDS + 2)
    first, last = span >> 32, span & _LOW
    least, most = 0, last
    if get_i64(w, P.CAUSAL) != 0:
        most = pos
    if get_i64(w, P.N_SWA) != 0:
        least = pos - get_i64(w, P.N_SWA) + 1
    if first >= least and last <= most:
        return mask
    if first > most or last < least:
        return 0
    block = get_i64(entries, entry * ENTRY_WORDS) & _LOW
    positions = _positions(w, line) + 4 * BLOCK * block
    seen = 0
    for i in range(BLOCK):
        if mask & (1 << i) and least <= get_i32(positions, i) <= most:
            seen |= 1 << i
    return seen


@part
def _positions(w: int, line: int) -> int:
    """Where the position of place 0 would be, as the line's places count."""
    if get_i64(w, P.MEMBERS) != 0:
        return get_i64(w, P.PLACE_POS)
    place0 = get_i32(get_i64(w, P.STREAMS), line) * get_i64(w, P.STREAM_BLOCKS) * BLOCK
    return get_i64(w, P.CELL_POS) + 4 * (line * get_i64(w, P.N_KV) - place0)


@part
def _list_block(w: int, block: int, masks: int, who: int) -> None:
    """Adds a block to the list: to the last run where that is the same rows' in the same segment."""
    n, n_runs = get_i64(w, P.NEED_LISTED), get_i64(w, P.NEED_RUNS)
    put_i64(w, P.NEED_LISTED, n + 1)
    if n < get_i64(w, P.ROOM_LISTED):
        put_i32(get_i64(w, P.LISTED), n, block)
        put_i64(get_i64(w, P.MASKS), n, masks)
    if n_runs > get_i64(w, P.SEGMENT_RUN) and n_runs <= get_i64(w, P.ROOM_RUNS):
        last = get_i64(w, P.RUNS) + 4 * RUN_WORDS * (n_runs - 1)
        if get_i32(last, U.WHO) == who:
            put_i32(last, U.COUNT, get_i32(last, U.COUNT) + 1)
            return
    put_i64(w, P.NEED_RUNS, n_runs + 1)
    if n_runs < get_i64(w, P.ROOM_RUNS):
        run = get_i64(w, P.RUNS) + 4 * RUN_WORDS * n_runs
        put_i32(run, U.WHO, who)
        put_i32(run, U.FIRST, n)
        put_i32(run, U.COUNT, 1)
        put_i32(run, U.SEGMENT, get_i64(w, P.SEGMENT))
        put_i32(run, U.OFFSET, n - get_i64(w, P.SEGMENT_LISTED))


@part
def _list_own(w: int, n_own: int, n_rows: int) -> int:
    """Lists what waits in OWN, row by row; returns how much waits then."""
    own = get_i64(w, P.OWN)
    for t in range(n_rows):
        for i in range(n_own):
            mask = get_i64(own, 2 * i + 1) & (0xFFFF << (16 * t))
            if mask != 0:
                _list_block(w, get_i64(own, 2 * i), mask, t)
    return 0


@part
def _end_segment(w: int) -> None:
    n_runs, n_listed = get_i64(w, P.NEED_RUNS), get_i64(w, P.NEED_LISTED)
    if n_runs <= get_i64(w, P.ROOM_RUNS):
        for i in range(get_i64(w, P.SEGMENT_RUN), n_runs):
            run = get_i64(w, P.RUNS) + 4 * RUN_WORDS * i
            put_i32(run, U.N_LISTED, n_listed - get_i64(w, P.SEGMENT_LISTED))
            put_i32(run, U.N_RUNS, n_runs - get_i64(w, P.SEGMENT_RUN))
    put_i64(w, P.SEGMENT_RUN, n_runs)
    put_i64(w, P.SEGMENT_LISTED, n_listed)


@part
def _begin_tile(w: int, r0: int, n_rows: int) -> int:
    """Sets the cursors; returns the largest position that any row of the tile sees."""
    most = -1
    for t in range(n_rows):
        line = _line(w, r0 + t)
        put_i64(w, P.CURSOR + t, get_i64(get_i64(w, P.LINE_FIRST), line))
        put_i64(w, P.END + t, get_i64(get_i64(w, P.LINE_FIRST), line + 1))
        most = max(most, _pos(w, r0 + t))
    put_i64(w, P.SEGMENT_RUN, get_i64(w, P.NEED_RUNS))
    put_i64(w, P.SEGMENT_LISTED, get_i64(w, P.NEED_LISTED))
    put_i64(w, P.SEGMENT, -1)
    return most if get_i64(w, P.CAUSAL) != 0 else _LOW


@part
def _next_block(w: int, n_rows: int) -> int:
    """The least first word at the cursors; _NONE at the end."""
    least = _NONE
    for t in range(n_rows):
        cursor = get_i64(w, P.CURSOR + t)
        if cursor < get_i64(w, P.END + t):
            least = min(least, get_i64(get_i64(w, P.ENTRIES), cursor * ENTRY_WORDS))
    return least


@part
def _masks_of(w: int, r0: int, n_rows: int, word: int) -> int:
    """16 bits per row: what each sees of the block `word`. Moves the cursors past it."""
    masks = 0
    for t in range(n_rows):
        cursor = get_i64(w, P.CURSOR + t)
        if cursor < get_i64(w, P.END + t) and get_i64(get_i64(w, P.ENTRIES), cursor * ENTRY_WORDS) == word:
            masks |= _seen_cells(w, _line(w, r0 + t), cursor, _pos(w, r0 + t)) << (16 * t)
            put_i64(w, P.CURSOR + t, cursor + 1)
    return masks


@part
def _list_tile(w: int, r0: int, n_rows: int) -> bool:
    """Lists all that these rows of ORDER see. False: one segment has too many blocks for a tile of several rows."""
    most = _begin_tile(w, r0, n_rows)
    segment, n_listed, n_own, word = -1, 0, 0, 0
    while word != _NONE:
        word = _next_block(w, n_rows)
        if word >> 32 > most:
            word = _NONE
        masks, n_see = _masks_of(w, r0, n_rows, word), 0
        for t in range(n_rows):
            n_see += ((masks >> (16 * t)) & 0xFFFF) != 0
        if n_see == 0 and word != _NONE:
            continue
        common = n_see >= _ENOUGH or n_see == n_rows
        n_more = 1 if common else n_see
        begins = word >> (32 + SEGMENT_SHIFT) != segment
        if n_listed + n_more > MOST_LISTED and not begins:
            if n_rows > 1:
                return False
            begins = True
        if begins or common:
            n_own = _list_own(w, n_own, n_rows)
        if begins:
            _end_segment(w)
            segment, n_listed = word >> (32 + SEGMENT_SHIFT), 0
            put_i64(w, P.SEGMENT, get_i64(w, P.SEGMENT) + 1)
        n_listed += n_more
        if not common:
            put_i64(get_i64(w, P.OWN), 2 * n_own, word & _LOW)
            put_i64(get_i64(w, P.OWN), 2 * n_own + 1, masks)
            n_own += 1
        elif word != _NONE:
            _list_block(w, word & _LOW, masks, -1)
    return True


@part
def _add_tile(w: int, r0: int, n_rows: int) -> int:
    """One more tile from row r0 of ORDER on; returns how many rows it took."""
    n_listed, n_runs, n_tiles = get_i64(w, P.NEED_LISTED), get_i64(w, P.NEED_RUNS), get_i64(w, P.NEED_TILES)
    while not _list_tile(w, r0, n_rows):
        put_i64(w, P.NEED_LISTED, n_listed)
        put_i64(w, P.NEED_RUNS, n_runs)
        n_rows = 1
    put_i64(w, P.NEED_TILES, n_tiles + 1)
    if n_tiles < get_i64(w, P.ROOM_TILES):
        tile = get_i64(w, P.TILES) + 4 * TILE_WORDS * n_tiles
        put_i32(tile, T.N_ROWS, n_rows)
        for t in range(MOST_ROWS):
            put_i32(tile, T.ROW + t, get_i64(get_i64(w, P.ORDER), r0 + min(t, n_rows - 1)))
        put_i32(tile, T.RUN, n_runs)
        put_i32(tile, T.N_RUNS, get_i64(w, P.NEED_RUNS) - n_runs)
        put_i32(tile, T.SEGMENT, 0)
        put_i32(tile, T.N_PARTS, 1)
        put_i32(tile, T.GROUP, 0)
        put_i32(tile, T.PARTIAL, 0)
        put_i32(tile, T.N_HERE, get_i64(w, P.SEGMENT))
        put_i32(tile, T.N_SEGMENTS, get_i64(w, P.SEGMENT))  # the end was counted as one more
    return n_rows


@part
def _may_share(w: int, a: int, b: int) -> bool:
    """Whether rows a and b of ORDER may be in one tile."""
    line_a, line_b = _line(w, a), _line(w, b)
    if line_a == line_b:
        return True
    return get_i64(w, P.MEMBERS) != 0 and _first_block(w, line_a) == _first_block(w, line_b)


@part
def _share_out(w: int) -> None:
    """Replaces every tile by parts of it, each with some of its segments, until there are about N_SPLIT tiles."""
    n_tiles, tiles, runs = get_i64(w, P.NEED_TILES), get_i64(w, P.TILES), get_i64(w, P.RUNS)
    n_each = -(-get_i64(w, P.N_SPLIT) // n_tiles)
    n = n_tiles
    for i in range(n_tiles):
        tile = tiles + 4 * TILE_WORDS * i
        n_segments, run = get_i32(tile, T.N_SEGMENTS), get_i32(tile, T.RUN)
        end_run = run + get_i32(tile, T.N_RUNS)
        n_parts = max(1, min(n_each, n_segments))
        for part in range(n_parts):
            segment, stop = part * n_segments // n_parts, (part + 1) * n_segments // n_parts
            new = tiles + 4 * TILE_WORDS * n
            for word in range(TILE_WORDS):
                put_i32(new, word, get_i32(tile, word))
            first_run = run
            while run < end_run and get_i32(runs + 4 * RUN_WORDS * run, U.SEGMENT) < stop:
                run += 1
            put_i32(new, T.RUN, first_run)
            put_i32(new, T.N_RUNS, run - first_run)
            put_i32(new, T.SEGMENT, segment)
            put_i32(new, T.N_HERE, stop - segment)
            put_i32(new, T.N_PARTS, n_parts)
            put_i32(new, T.GROUP, get_i64(w, P.N_GROUPS))
            put_i32(new, T.PARTIAL, get_i64(w, P.N_PARTIALS) + segment)
            n += 1
        if n_parts > 1:
            put_i64(w, P.N_GROUPS, get_i64(w, P.N_GROUPS) + 1)
            put_i64(w, P.N_PARTIALS, get_i64(w, P.N_PARTIALS) + n_segments)
    for word in range(TILE_WORDS * (n - n_tiles)):
        put_i32(tiles, word, get_i32(tiles, TILE_WORDS * n_tiles + word))
    put_i64(w, P.NEED_TILES, n - n_tiles)


def _tiles(w: int) -> None:
    _order_rows(w)
    n_rows = get_i64(w, P.N_ROWS)
    for word in (P.NEED_LISTED, P.NEED_RUNS, P.NEED_TILES, P.N_GROUPS, P.N_PARTIALS):
        put_i64(w, word, 0)
    r0 = 0
    while r0 < n_rows:
        n = 1
        while n < MOST_ROWS and r0 + n < n_rows and _may_share(w, r0, r0 + n):
            n += 1
        r0 += _add_tile(w, r0, n)
    fits = get_i64(w, P.NEED_RUNS) <= get_i64(w, P.ROOM_RUNS) and get_i64(w, P.NEED_LISTED) <= get_i64(w, P.ROOM_LISTED)
    n_tiles = get_i64(w, P.NEED_TILES)
    if fits and n_tiles < get_i64(w, P.N_SPLIT) and n_tiles + 2 * get_i64(w, P.N_SPLIT) <= get_i64(w, P.ROOM_TILES):
        _share_out(w)
    if fits:
        put_i32(get_i64(w, P.LISTED), get_i64(w, P.NEED_LISTED), 0)  # what the last block looks ahead to


KERNELS: Mapping[str, Callable[[Features], Callable[..., Any]]] = MappingProxyType({"tiles": lambda features: _tiles})
