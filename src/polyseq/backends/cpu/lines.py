"""What each sequence can see at all: its blocks, in the order of their first position.

Enters: a view's columns and the block table. Leaves: per *line* (a stream's one sequence, or one sequence of a unified
cache) a list of entries of three words:

    key << 32 | block        key: the first position of anything in the block; the order of the list
    mask                     bit i: cell i of the block is the sequence's
    first << 32 | last       the least and the largest position among these cells

Which of them a row sees (nothing after itself, nothing before its window) is for tiling.py to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any


from polyseq.backends.cpu.features import Features
from polyseq.backends.cpu.memory import get_i32, get_i64, get_u8, put_i32, put_i64
from polyseq.backends.cpu.numba_build import part
from polyseq.backends.cpu.tile_words import BLOCK, ENTRY_WORDS, P

_NEVER = (1 << 31) - 1


@part
def _put_entry(entries: int, i: int, key: int, block: int, mask: int, first: int, last: int) -> None:
    put_i64(entries, i * ENTRY_WORDS, (key << 32) | block)
    put_i64(entries, i * ENTRY_WORDS + 1, mask)
    put_i64(entries, i * ENTRY_WORDS + 2, (first << 32) | last)


@part
def _move_entry(entries: int, to: int, source: int) -> None:
    for word in range(ENTRY_WORDS):
        put_i64(entries, to * ENTRY_WORDS + word, get_i64(entries, source * ENTRY_WORDS + word))


@part
def _sort_entries(entries: int, start: int, stop: int) -> None:
    """Shell's sort by the first word; one look where the entries are in order, as they mostly are."""
    gap = 0
    for i in range(start + 1, stop):
        if get_i64(entries, i * ENTRY_WORDS) < get_i64(entries, (i - 1) * ENTRY_WORDS):
            gap = 1
    while gap != 0 and gap * 3 < stop - start:
        gap = gap * 3 + 1
    while gap > 0:
        for i in range(start + gap, stop):
            word, mask, span = _entry(entries, i)
            j = i
            while j >= start + gap and get_i64(entries, (j - gap) * ENTRY_WORDS) > word:
                _move_entry(entries, j, j - gap)
                j -= gap
            put_i64(entries, j * ENTRY_WORDS, word)
            put_i64(entries, j * ENTRY_WORDS + 1, mask)
            put_i64(entries, j * ENTRY_WORDS + 2, span)
        gap //= 3


@part
def _entry(entries: int, i: int) -> tuple[int, int, int]:
    first_word = i * ENTRY_WORDS
    return get_i64(entries, first_word), get_i64(entries, first_word + 1), get_i64(entries, first_word + 2)


def _of_streams(w: int) -> None:
    n_kv, entries, room = get_i64(w, P.N_KV), get_i64(w, P.ENTRIES), get_i64(w, P.ROOM_ENTRIES)
    n = 0
    for line in range(get_i64(w, P.N_LINES)):
        cell_pos = get_i64(w, P.CELL_POS) + 4 * line * n_kv
        block0 = get_i32(get_i64(w, P.STREAMS), line) * get_i64(w, P.STREAM_BLOCKS)
        put_i64(get_i64(w, P.LINE_FIRST), line, n)
        start = n
        for cell0 in range(0, n_kv, BLOCK):
            mask, first, last = 0, _NEVER, -1
            for i in range(min(BLOCK, n_kv - cell0)):
                pos = get_i32(cell_pos, cell0 + i)
                if pos >= 0:
                    mask |= 1 << i
                    first, last = min(first, pos), max(last, pos)
            if mask != 0:
                if n < room:
                    _put_entry(entries, n, first, block0 + cell0 // BLOCK, mask, first, last)
                n += 1
        if n <= room:
            _sort_entries(entries, start, n)
    put_i64(get_i64(w, P.LINE_FIRST), get_i64(w, P.N_LINES), n)
    put_i64(w, P.NEED_ENTRIES, n)


@part
def _learn_positions(w: int) -> None:
    """Positions by place, and every block's least."""
    cell_pos, place, key = get_i64(w, P.CELL_POS), get_i64(w, P.PLACE), get_i64(w, P.BLOCK_KEY)
    n_kv = get_i64(w, P.N_KV)
    for cell in range(n_kv):
        if get_i32(place, cell) >= 0:
            put_i32(key, get_i32(place, cell) // BLOCK, _NEVER)
    for cell in range(n_kv):
        at, pos = get_i32(place, cell), get_i32(cell_pos, cell)
        if at >= 0 and pos >= 0:
            put_i32(get_i64(w, P.PLACE_POS), at, pos)
            put_i32(key, at // BLOCK, min(get_i32(key, at // BLOCK), pos))


@part
def _add_cell(w: int, cell: int, n: int) -> int:
    """Puts one cell of a sequence into its list; returns how many entries all lists have now."""
    at = get_i32(get_i64(w, P.PLACE), cell)
    pos = get_i32(get_i64(w, P.CELL_POS), cell)
    if at < 0 or pos < 0:
        return n
    entries, seen, block = get_i64(w, P.ENTRIES), get_i64(w, P.SEEN), at // BLOCK
    i = get_i32(seen, block) - 1
    if i < 0:
        if n < get_i64(w, P.ROOM_ENTRIES):
            put_i32(seen, block, n + 1)
            _put_entry(entries, n, get_i32(get_i64(w, P.BLOCK_KEY), block), block, 1 << (at % BLOCK), pos, pos)
        return n + 1
    word, mask, span = _entry(entries, i)
    first, last = min(span >> 32, pos), max(span & 0xFFFFFFFF, pos)
    put_i64(entries, i * ENTRY_WORDS + 1, mask | (1 << (at % BLOCK)))
    put_i64(entries, i * ENTRY_WORDS + 2, (first << 32) | last)
    return n


def _of_sequences(w: int) -> None:
    _learn_positions(w)
    n_kv, n = get_i64(w, P.N_KV), 0
    entries, room, seen = get_i64(w, P.ENTRIES), get_i64(w, P.ROOM_ENTRIES), get_i64(w, P.SEEN)
    for line in range(get_i64(w, P.N_LINES)):
        members = get_i64(w, P.MEMBERS) + line * n_kv
        put_i64(get_i64(w, P.LINE_FIRST), line, n)
        start, cell = n, 0
        while cell < n_kv:
            # Eight cells of others at once are passed over.
            if cell + 8 <= n_kv and get_i64(members + cell, 0) == 0:
                cell += 8
            else:
                if get_u8(members, cell) != 0:
                    n = _add_cell(w, cell, n)
                cell += 1
        for i in range(start, min(n, room)):
            put_i32(seen, get_i64(entries, i * ENTRY_WORDS) & 0xFFFFFFFF, 0)
        if n <= room:
            _sort_entries(entries, start, n)
    put_i64(get_i64(w, P.LINE_FIRST), get_i64(w, P.N_LINES), n)
    put_i64(w, P.NEED_ENTRIES, n)


KERNELS: Mapping[str, Callable[[Features], Callable[..., Any]]] = MappingProxyType(
    {"streams": lambda features: _of_streams, "sequences": lambda features: _of_sequences}
)
