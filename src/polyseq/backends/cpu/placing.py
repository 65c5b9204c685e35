"""The block table: where in memory each cell of a unified cache is, for many sequences side by side.

Enters: a view's columns and the table as the last run left it. Leaves: the table, and each row's place. `memory` numbers
cells as it likes; sequences decoding in turn get cells in turn. Read in that order, a block of 16 cells would hold 16
sequences, and each of them would read all blocks. So a row goes next to the cell before it in its own sequence:

    cell      0  1  2  3  4  5  6  7  8         place   block 0: A A A A A . .     block 1: B B B B . .
    sequence  A  B  A  B  A  B  A  B  A

Sequences that share a prefix share its blocks: the first to go on takes the rest of the last block, others begin a new
one. A cell that became free leaves its place; an empty block goes on a stack, and the last one freed is used first, so
memory is taken only as it is needed. When no block is left a row takes any free place: slower to read, never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any


from polyseq.backends.cpu.features import Features
from polyseq.backends.cpu.memory import get_i32, get_i64, get_u8, put_i32, put_i64, put_u8
from polyseq.backends.cpu.numba_build import part
from polyseq.backends.cpu.tile_words import BLOCK, P


@part
def _release(w: int, cell: int) -> None:
    """Takes a cell out of its place."""
    place = get_i32(get_i64(w, P.PLACE), cell)
    block = place // BLOCK
    put_i32(get_i64(w, P.PLACE), cell, -1)
    put_i32(get_i64(w, P.HOLDS), place, -1)
    left = get_i32(get_i64(w, P.N_HELD), block) - 1
    put_i32(get_i64(w, P.N_HELD), block, left)
    if left == 0:
        put_i32(get_i64(w, P.FREE), get_i64(w, P.N_FREE), block)
        put_i64(w, P.N_FREE, get_i64(w, P.N_FREE) + 1)


@part
def _new_place(w: int) -> int:
    """The first place of a free block, else any free place. There are at least as many places as cells."""
    n_free = get_i64(w, P.N_FREE)
    if n_free > 0:
        put_i64(w, P.N_FREE, n_free - 1)
        return get_i32(get_i64(w, P.FREE), n_free - 1) * BLOCK
    place = 0
    while get_i32(get_i64(w, P.HOLDS), place) >= 0:
        place += 1
    return place


@part
def _settle(w: int, cell: int, before: int) -> int:
    """Gives a cell without a place one: right after `before`, the cell before it (-1: none), where that is free."""
    place = -1
    if before >= 0:
        after = get_i32(get_i64(w, P.PLACE), before) + 1
        if after % BLOCK != 0 and get_i32(get_i64(w, P.HOLDS), after) < 0:
            place = after
    if place < 0:
        place = _new_place(w)
    block = place // BLOCK
    put_i32(get_i64(w, P.PLACE), cell, place)
    put_i32(get_i64(w, P.HOLDS), place, cell)
    put_i32(get_i64(w, P.N_HELD), block, get_i32(get_i64(w, P.N_HELD), block) + 1)
    put_u8(get_i64(w, P.TOUCHED), block, 1)
    put_i64(w, P.N_PLACED, max(get_i64(w, P.N_PLACED), cell + 1))
    return place


@part
def _last_before(w: int, line: int, pos: int) -> int:
    """The cell of a sequence, among those that have a place, with the largest position below pos; -1: none."""
    n_kv, cell_pos, place = get_i64(w, P.N_KV), get_i64(w, P.CELL_POS), get_i64(w, P.PLACE)
    members = get_i64(w, P.MEMBERS) + line * n_kv
    best, best_pos, cell = -1, -1, n_kv - 1
    # From the end, where it mostly is; eight cells of others at once are passed over.
    while cell >= 0 and best_pos < pos - 1:
        if cell >= 7 and get_i64(members + cell - 7, 0) == 0:
            cell -= 8
        else:
            if get_u8(members, cell) != 0 and get_i32(place, cell) >= 0:
                at = get_i32(cell_pos, cell)
                if best_pos < at < pos:
                    best, best_pos = cell, at
            cell -= 1
    return best


def _place_rows(w: int) -> None:
    n_rows, n_kv = get_i64(w, P.N_ROWS), get_i64(w, P.N_KV)
    cell_pos, place, cells = get_i64(w, P.CELL_POS), get_i64(w, P.PLACE), get_i64(w, P.CELLS)
    n_placed = get_i64(w, P.N_PLACED)
    for cell in range(n_placed):
        if get_i32(place, cell) >= 0 and (cell >= n_kv or get_i32(cell_pos, cell) < 0):
            _release(w, cell)
    put_i64(w, P.N_PLACED, min(n_placed, n_kv))
    for i in range(n_rows):
        if get_i32(place, get_i32(cells, i)) >= 0:
            _release(w, get_i32(cells, i))

    tails = get_i64(w, P.TAIL)
    for line in range(get_i64(w, P.N_LINES)):
        put_i64(tails, line, -2)  # not looked for yet
    for i in range(n_rows):
        line = get_i64(get_i64(w, P.ROW_LINE), i)
        tail = get_i64(tails, line)
        if tail == -2:
            tail = _last_before(w, line, get_i32(get_i64(w, P.POS), i))
        cell = get_i32(cells, i)
        put_i32(get_i64(w, P.ROW_PLACE), i, _settle(w, cell, tail))
        put_i64(tails, line, cell)


def _place_cells(w: int) -> None:
    """Cells that come without a view (a restored state): one after the other."""
    place, cells = get_i64(w, P.PLACE), get_i64(w, P.CELLS)
    before = -1
    for i in range(get_i64(w, P.N_ROWS)):
        cell = get_i32(cells, i)
        if get_i32(place, cell) < 0:
            _settle(w, cell, before)
        put_i32(get_i64(w, P.ROW_PLACE), i, get_i32(place, cell))
        before = cell


def _place_in_streams(w: int) -> None:
    """Without a table a stream's cells follow each other: a stream has one sequence."""
    n_places = get_i64(w, P.STREAM_BLOCKS) * BLOCK
    for i in range(get_i64(w, P.N_ROWS)):
        stream = get_i32(get_i64(w, P.STREAMS), get_i64(get_i64(w, P.ROW_LINE), i))
        place = stream * n_places + get_i32(get_i64(w, P.CELLS), i)
        put_i32(get_i64(w, P.ROW_PLACE), i, place)
        put_u8(get_i64(w, P.TOUCHED), place // BLOCK, 1)


KERNELS: Mapping[str, Callable[[Features], Callable[..., Any]]] = MappingProxyType(
    {
        "rows": lambda features: _place_rows,
        "cells": lambda features: _place_cells,
        "streams": lambda features: _place_in_streams,
    }
)
