"""Words of tiles: how the planner of attention tells its kernels which cells each row reads.

Enters: nothing. Leaves: word numbers, for Python and compiled code alike. The picture of one tile of three rows; `a` to
`g` are blocks of 16 cells, in the order of their first position:

    row 0 sees  a b c d            runs:  all rows   a b c     segment 0
    row 1 sees  a b c   e f               row 0      d         segment 0
    row 2 sees  a b c       g             row 1      e f       segment 0
                                          row 2      g         segment 0

    listed blocks   a b c d e f g         masks [n_listed][4]: bit i of masks[j][t]: row t sees cell i of block j

A row reads its runs in this order whatever tile it is in, so its result has the same bits everywhere. All that one
segment lists (512 positions) is summed up by itself, and segments are added in order: so one long row may be shared out
to threads, segment by segment, and the bits stay the same.
"""

from __future__ import annotations

from enum import IntEnum

BLOCK = 16  # cells of a block
MOST_ROWS = 4  # rows of a tile
SEGMENT_SHIFT = 9  # 512 positions, by a block's first
MOST_LISTED = 256  # blocks that one segment of a tile may list: bounds the scores kept at once


class T(IntEnum):
    """Words (i32) of a tile."""

    N_ROWS = 0
    ROW = 1  # MOST_ROWS words: which rows of the ubatch
    RUN = 5  # its first run
    N_RUNS = 6
    SEGMENT = 7  # number of its first segment: 0, or more where the row is shared out
    N_PARTS = 8  # tiles that share out these rows; 1: this is all
    GROUP = 9  # which shared-out rows: their counter
    PARTIAL = 10  # where this tile's first segment leaves its sums, counted in segments
    N_SEGMENTS = 11  # of all parts together
    N_HERE = 12  # segments of this tile


class U(IntEnum):
    """Words (i32) of a run: neighbours in the list of blocks that the same rows read."""

    WHO = 0  # row of the tile, -1: all
    FIRST = 1  # in the list
    COUNT = 2
    SEGMENT = 3  # number within the rows' segments, from 0
    N_LISTED = 4  # blocks that this run's segment lists in all its runs
    OFFSET = 5  # of them, how many before this run
    N_RUNS = 6  # runs of this run's segment


TILE_WORDS = 13
RUN_WORDS = 7


class P(IntEnum):
    """Words (i64) that a planning kernel is given: sizes, then addresses."""

    N_ROWS = 0
    N_KV = 1
    N_LINES = 2  # streams, or sequences of the one stream
    N_SWA = 3
    N_PLACED = 5  # cells below this may have a place (changed)
    N_FREE = 6  # blocks on the stack of free ones (changed)
    N_BLOCKS = 7  # of the whole part
    STREAM_BLOCKS = 8  # blocks of one stream; 0: places come from a table
    N_TILE_GROUPS = 9  # groups of rows that may be a tile
    # What the caller made room for, and what was needed (changed): more needed than room: make room and come again.
    ROOM_ENTRIES = 10
    NEED_ENTRIES = 11
    ROOM_LISTED = 12
    NEED_LISTED = 13
    ROOM_RUNS = 14
    NEED_RUNS = 15
    ROOM_TILES = 16
    NEED_TILES = 17
    # Columns of the view.
    LAST_SEEN = 19  # i32 [n_rows] the last position that a row sees
    CELLS = 20  # i32 [n_rows]
    POS = 21  # i32 [n_rows]
    ROW_LINE = 22  # i64 [n_rows] the row's stream or sequence, as a line
    CELL_POS = 23  # i32 [n_streams, n_kv]
    MEMBERS = 24  # u8 [n_lines, n_kv], 0: streams
    STREAMS = 25  # i32 [n_lines]
    # The block table of a part.
    PLACE = 26  # i32 [n_cells] where a cell is, -1: nowhere
    HOLDS = 27  # i32 [n_places] the cell in this place, -1: none
    N_HELD = 28  # i32 [n_blocks]
    FREE = 29  # i32 [n_blocks] stack of free blocks
    PLACE_POS = 30  # i32 [n_places] position of what is in this place
    BLOCK_KEY = 31  # i32 [n_blocks] the least of them
    SEEN = 32  # i32 [n_blocks] scratch, zeros
    TAIL = 33  # i64 [n_lines] scratch: the last cell of each sequence
    # Lists.
    LINE_FIRST = 34  # i64 [n_lines + 1]
    ENTRIES = 35  # i64 [room][ENTRY_WORDS]
    ORDER = 36  # i64 [n_rows] rows, neighbours where they see the same
    OWN = 37  # i64 [MOST_LISTED][2] scratch: blocks that single rows see, and their masks
    ROW_PLACE = 38  # i32 [n_rows] where each row is written
    TILES = 39
    RUNS = 40
    LISTED = 41  # i32 [n_listed]
    MASKS = 42  # u16 [n_listed][MOST_ROWS], written as one i64
    TOUCHED = 43  # u8 [n_blocks] 1: something was written there
    # Where the merge of a tile's lists stands.
    CURSOR = 44  # MOST_ROWS words: each row's next entry
    END = 48  # MOST_ROWS words
    SEGMENT_RUN = 52  # the first run of the segment being listed
    SEGMENT_LISTED = 53  # the first listed block of it
    SEGMENT = 54  # its number
    GROUP_FIRST = 55  # i64 [n_tile_groups + 1] each group's first row of ORDER
    # What a failed call must find again: the block table as it was marked.
    KEPT = 56  # u8 [n_places] 1: something was there, and the place is not given away
    N_KEPT = 57  # i32 [n_blocks] how many such places


PLAN_WORDS = 58
ENTRY_WORDS = 3  # key << 32 | block, mask, first position << 32 | last position
