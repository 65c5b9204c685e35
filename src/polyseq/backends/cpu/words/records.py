"""Names of the words that the plan-maker writes and that compiled code reads.

Enters: nothing. Leaves: word numbers. Everything between Python and a kernel is an int64: an address, a size or a
count. A *record* is one op of a plan, written once; a *step* holds what differs from ubatch to ubatch, written before
each run. Kernels take these numbers as constants.
"""

from __future__ import annotations

from enum import IntEnum

RECORD_WORDS = 32
RECORD_BYTES = 8 * RECORD_WORDS
STEP_WORDS = 64


class R(IntEnum):
    """Words of every record. From `OWN` on they are the op's own; its kernel names them."""

    UNIT = 0  # address of void unit(record, step, u0, u1, scratch)
    # How many units there are: N_FIXED * ceil(step[COUNT_WORD] / PER_UNIT)
    COUNT_WORD = 1  # a word of S: ONE, N_TOKENS, N_OUTPUTS, ...
    N_FIXED = 2
    PER_UNIT = 3
    MAX_CHUNK = 4  # most units that a thread takes at once
    OPEN = 5  # 1: the next record does not need this one; threads go on to it without waiting
    # Linear ops: records whose units go on with what a unit has computed, N_THEN for each part of the columns.
    THEN = 6  # address
    N_THEN = 7
    OWN = 8


class S(IntEnum):
    """Words of a step. Addresses are of contiguous arrays that outlive the run."""

    ONE = 0  # holds 1: what a record counts by whose units do not depend on the ubatch
    N_TOKENS = 1
    N_OUTPUTS = 2
    N_SEQS = 3  # rows of a value with a row per sequence
    TOKEN = 4  # address, i32 [n_tokens]
    POS = 5  # address, i32 [n_pos][n_tokens]
    OUT_ROWS = 6  # address, i32 [n_outputs]
    IS_EMBD = 7  # address, u8 [n_tokens]
    N_POS = 8
    SPANS = 9  # address, i32 [n_seqs][2]: first row and rows of each sequence (seq_tiles.py)
    SEQ_TILES = 10  # address of the tiles that attention over whole sequences works on
    N_SEQ_TILES = 11
    # The all-token part of the cache, then the window part: the same words, `KV_WORDS` apart.
    KV = 16
    KV_SWA = 32
    ROWS = 48  # and what follows: how many rows there are of values of another count
    TURNS = 56  # and what follows: addresses of the rows' turns (turns.py), one for each way to turn


KV_WORDS = S.KV_SWA - S.KV


class K(IntEnum):
    """Words of one part of the cache, counted from `S.KV` or `S.KV_SWA`."""

    N_TILES = 0
    TILES = 1  # address of the tiles that attention works on (tile_words.py)
    RUNS = 2  # address of their runs
    LISTED = 3  # address of the blocks that runs list
    MASKS = 4  # address of four masks per listed block
    PLACES = 5  # address, i32 [n_tokens]: where each row's K and V go
    POOL = 6  # address of the part's blocks (kv/layout.py)
    PARTIALS = 7  # address of the sums of rows that are shared out to threads
    COUNTERS = 8  # address of a counter for each of them, 0 between runs
