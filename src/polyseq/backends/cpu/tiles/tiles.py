"""What attention of one ubatch reads, planned: a view of the memory becomes tiles, runs, block lists and masks.

Enters: a `KvView` and the cell tensors of its part. Leaves: rows placed in the block table, and the words of a step by
which the kernels find it all (`K` of records.py). The work is done by placing.py, lines.py and tiling.py; here arrays
are made large enough for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.kv.part import KvPart
from polyseq.backends.cpu.words.aligned import address
from polyseq.backends.cpu.words.records import K
from polyseq.backends.cpu.words.tile_words import (
    BLOCK,
    ENTRY_WORDS,
    MOST_LISTED,
    MOST_ROWS,
    RUN_WORDS,
    TILE_WORDS,
    P,
    T,
    U,
)
from polyseq.memory.view import KvView

# How many rows each growing array starts with.
_FIRST_ROOM = 256


class Tiles:
    """The plan of one part, made anew for every ubatch in the same arrays: addresses hold until the next `plan`."""

    def __init__(self, part: KvPart) -> None:
        self._part, self._words = part, part.words
        self._columns: dict[P, NDArray[Any]] = {P.OWN: np.zeros(2 * MOST_LISTED + 8, np.int64)}
        self._partials = np.zeros(1, np.float32)
        self._counters = np.zeros(1, np.int64)
        self._tiles: NDArray[np.int32] = np.zeros((0, TILE_WORDS), np.int32)
        self._n_partials = self._n_shared = 0  # segments and rows that are shared out
        self._set(P.OWN, self._columns[P.OWN])
        for room in (P.ROOM_ENTRIES, P.ROOM_LISTED, P.ROOM_RUNS, P.ROOM_TILES):
            self._make_room(room, _FIRST_ROOM)

    def plan(self, view: KvView, *, n_split: int = 0) -> None:
        """Changes the block table (rows get places) and this plan.

        `n_split`: with fewer tiles than that, long rows are shared out segment by segment.
        """
        self.place_rows(view)
        self._list(len(view.cells), n_split)

    def place_rows(self, view: KvView) -> None:
        """Changes the block table: cells that became free leave it, rows get places, to be written there."""
        self._set_columns(view)
        self._part.call("kv.placing.rows" if self._part.unified else "kv.placing.streams")
        self._check_places(len(view.cells))

    def list_tiles(self, view: KvView, *, n_split: int = 0) -> None:
        """Changes this plan: what the rows see, where it is now."""
        self._set_columns(view)
        self._list(len(view.cells), n_split)

    def _check_places(self, n_rows: int) -> None:
        """Pure. Kernels write where a place says: one outside would be anybody's memory. Raises IndexError."""
        places, n_places = self.row_places[:n_rows], self._part.n_blocks * BLOCK
        if n_rows and not (places.min() >= 0 and places.max() < n_places):
            row = int(np.flatnonzero((places < 0) | (places >= n_places))[0])
            raise IndexError(f"row {row} would be written to place {places[row]} of {n_places}")

    def _list(self, n_rows: int, n_split: int) -> None:
        words = self._words
        self._fit("tiles.lines.sequences" if self._part.unified else "tiles.lines.streams", P.ROOM_ENTRIES)
        self._group_rows(n_rows)
        if words[P.ROOM_TILES] < n_rows:
            self._make_room(P.ROOM_TILES, n_rows)
        self._fit("tiles.tiling.tiles", P.ROOM_LISTED, P.ROOM_RUNS)
        n_tiles, n_listed = int(words[P.NEED_TILES]), int(words[P.NEED_LISTED])
        self._columns[P.LISTED][n_listed] = 0  # what the last block looks ahead to
        self._tiles = self._columns[P.TILES].reshape(-1, TILE_WORDS)[:n_tiles]
        self._n_partials = self._n_shared = 0
        if n_tiles < n_split:
            self._share_out(-(-n_split // n_tiles))

    def _group_rows(self, n_rows: int) -> None:
        """Changes ORDER and GROUP_FIRST: up to MOST_ROWS rows of one sequence, or of sequences with the same begin."""
        line = self._columns[P.ROW_LINE][:n_rows]
        key = line
        if self._part.unified:
            firsts = self._columns[P.LINE_FIRST][: int(self._words[P.N_LINES]) + 1]
            entries = self._columns[P.ENTRIES].reshape(-1, ENTRY_WORDS)
            # The first block of each line; a line that sees nothing has one of its own.
            block = np.where(
                firsts[1:] > firsts[:-1], entries[firsts[:-1], 0] & 0xFFFFFFFF, -1 - np.arange(len(firsts) - 1)
            )
            key = (block << 24)[line] + line
        order = np.argsort(key, kind="stable")
        share = key[order] >> 24 if self._part.unified else line[order]
        n = np.arange(n_rows)
        begins = np.concatenate(([True], share[1:] != share[:-1]))
        begins |= (n - np.maximum.accumulate(np.where(begins, n, 0))) % MOST_ROWS == 0
        groups = np.append(np.flatnonzero(begins), n_rows)
        self._set(P.ORDER, order.astype(np.int64))
        self._set(P.GROUP_FIRST, groups.astype(np.int64))
        self._words[P.N_TILE_GROUPS] = len(groups) - 1

    def _share_out(self, n_each: int) -> None:
        """Changes the tiles: each becomes up to `n_each` parts with some of its segments."""
        whole, runs = self._tiles, self.runs
        n_segments = whole[:, T.N_SEGMENTS]
        n_parts = np.clip(n_segments, 1, n_each)
        tiles = np.repeat(whole, n_parts, axis=0)
        part = np.arange(len(tiles)) - np.repeat(np.cumsum(n_parts) - n_parts, n_parts)
        count, total = tiles[:, T.N_SEGMENTS], np.repeat(n_parts, n_parts)
        first, stop = part * count // total, (part + 1) * count // total
        shared = n_parts > 1
        partial = np.cumsum(n_segments * shared) - n_segments * shared
        tiles[:, T.SEGMENT], tiles[:, T.N_HERE], tiles[:, T.N_PARTS] = first, stop - first, total
        tiles[:, T.GROUP] = np.repeat(np.cumsum(shared) - shared, n_parts)
        tiles[:, T.PARTIAL] = np.repeat(partial, n_parts) + first
        # A tile's runs lie in order of their segments.
        tile_of_run = np.repeat(np.arange(len(whole)), whole[:, T.N_RUNS])
        key = tile_of_run * (1 << 32) + runs[:, U.SEGMENT]
        wanted = np.repeat(np.arange(len(whole)), n_parts) * (1 << 32)
        tiles[:, T.RUN] = np.searchsorted(key, wanted + first)
        tiles[:, T.N_RUNS] = np.searchsorted(key, wanted + stop) - tiles[:, T.RUN]
        self._tiles = np.ascontiguousarray(tiles)
        self._n_partials, self._n_shared = int((n_segments * shared).sum()), int(shared.sum())

    def step_words(self, *, partial_floats: int, n_head_kv: int) -> Mapping[K, int]:
        """Changes scratch. Words for kernels whose layers need `partial_floats` for a shared-out segment of a head."""
        words = self._words
        n_partial, n_counters = self._n_partials * partial_floats * n_head_kv, self._n_shared * n_head_kv
        if len(self._partials) < n_partial:
            self._partials = np.empty(n_partial, np.float32)
        if len(self._counters) < n_counters:
            self._counters = np.zeros(n_counters, np.int64)
        return {
            K.N_TILES: self.n_tiles,
            K.TILES: address(self._tiles),
            K.RUNS: int(words[P.RUNS]),
            K.LISTED: int(words[P.LISTED]),
            K.MASKS: int(words[P.MASKS]),
            K.PLACES: int(words[P.ROW_PLACE]),
            K.POOL: address(self._part.pool),
            K.PARTIALS: address(self._partials),
            K.COUNTERS: address(self._counters),
        }

    # ---- looking ---------------------------------------------------------------------------------------

    @property
    def n_tiles(self) -> int:
        return len(self._tiles)

    @property
    def tiles(self) -> NDArray[np.int32]:
        """[n_tiles, TILE_WORDS] i32, see `T`."""
        return self._tiles

    @property
    def runs(self) -> NDArray[np.int32]:
        """[n_runs, RUN_WORDS] i32, see `U`."""
        return self._columns[P.RUNS].reshape(-1, RUN_WORDS)[: int(self._words[P.NEED_RUNS])]

    @property
    def row_places(self) -> NDArray[np.int32]:
        """[n_tokens] i32 where each row's K and V go."""
        return self._columns[P.ROW_PLACE]

    @property
    def listed(self) -> NDArray[np.int32]:
        """[n_listed] i32 blocks."""
        return self._columns[P.LISTED][: int(self._words[P.NEED_LISTED])]

    @property
    def masks(self) -> NDArray[np.uint16]:
        """[n_listed, MOST_ROWS] u16."""
        return self._columns[P.MASKS].reshape(-1, MOST_ROWS)[: int(self._words[P.NEED_LISTED])]

    # ---- making room -----------------------------------------------------------------------------------

    def _set_columns(self, view: KvView) -> None:
        """Changes the words: the view's sizes and columns, and scratch for as many."""
        members, row_line = view.members, view.row_member
        if not self._part.unified:
            members, row_line = None, view.row_stream
        elif members is None or row_line is None:  # one stream of one sequence
            members, row_line = view.cell_pos >= 0, np.zeros(len(view.cells), np.intp)
        self._set(P.CELLS, np.ascontiguousarray(view.cells, np.int32))
        self._set(P.POS, np.ascontiguousarray(view.pos, np.int32))
        last_seen = view.pos if view.last_seen is None else view.last_seen
        self._set(P.LAST_SEEN, np.ascontiguousarray(last_seen, np.int32))
        self._set(P.ROW_LINE, np.ascontiguousarray(row_line, np.int64))
        self._set(P.CELL_POS, np.ascontiguousarray(view.cell_pos, np.int32))
        self._set(P.STREAMS, np.ascontiguousarray(view.streams, np.int32))
        words, n_rows = self._words, len(view.cells)
        n_lines = len(view.streams) if members is None else len(members)
        words[P.MEMBERS] = 0
        if members is not None:
            self._set(P.MEMBERS, np.ascontiguousarray(members).view(np.uint8))
        words[P.N_ROWS], words[P.N_LINES] = n_rows, n_lines
        words[P.N_KV], words[P.N_SWA] = view.n_kv, view.n_swa
        for word, counted, dtype in _SCRATCH:
            n = n_lines + 1 if counted == "lines" else n_rows
            if len(self._columns.get(word, ())) < n:
                self._set(word, np.empty(n, dtype))

    def _fit(self, kernel: str, *rooms: P) -> None:
        """Changes the plan: runs a kernel, once more where its arrays were too small."""
        self._part.call(kernel)
        short = [room for room in rooms if self._words[room + 1] > self._words[room]]
        if short:
            for room in short:
                self._make_room(room, int(self._words[room + 1]) * 5 // 4)
            self._part.call(kernel)

    def _make_room(self, room: P, n: int) -> None:
        self._words[room] = n
        for word, width, dtype in _ROOMS[room]:
            # One more: kernels look ahead by one block.
            self._set(word, np.empty((n + 1) * width, dtype))

    def _set(self, word: P, column: NDArray[Any]) -> None:
        self._columns[word] = column  # kept alive as long as its address is in use
        self._words[word] = address(column)


_SCRATCH = (
    (P.TAIL, "lines", np.int64),
    (P.LINE_FIRST, "lines", np.int64),
    (P.ROW_PLACE, "rows", np.int32),
)
# Which arrays have this many rows, how wide a row is. The word after a room says how much was needed.
_ROOMS: Mapping[P, tuple[tuple[P, int, type], ...]] = {
    P.ROOM_ENTRIES: ((P.ENTRIES, ENTRY_WORDS, np.int64),),
    P.ROOM_LISTED: ((P.LISTED, 1, np.int32), (P.MASKS, MOST_ROWS, np.uint16)),
    P.ROOM_RUNS: ((P.RUNS, RUN_WORDS, np.int32),),
    P.ROOM_TILES: ((P.TILES, TILE_WORDS, np.int32),),
}
