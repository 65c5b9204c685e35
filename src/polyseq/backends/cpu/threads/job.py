"""Words that the pool writes and the executor reads: a job, a record's counters, the head that all threads share.

Enters: nothing. Leaves: word numbers. A line is 64 bytes, what a core takes of memory at once: words that different
threads write stand on different lines.
"""

from __future__ import annotations

from enum import IntEnum

WORD = 8  # bytes
LINE = 64  # bytes
LINE_WORDS = LINE // WORD
N_RING = 2


class J(IntEnum):
    """Words of a job."""

    RECORDS = 0  # address of [n_records, RECORD_WORDS] i64
    N_RECORDS = 1
    STEP = 2  # address of [STEP_WORDS] i64
    COUNTERS = 3  # address of [n_records] lines
    N_THREADS = 4
    N_SPIN = 5  # looks before a thread that waits goes to sleep
    SCRATCH = 6  # address of [n_threads, scratch_bytes] u8
    SCRATCH_BYTES = 7
    TAKEN = 8  # address of [n_threads, taken_bytes / WORD] i64: units handed out of each thread's share of a record,
    # and more: every vain try counts too
    TAKEN_BYTES = 9


JOB_WORDS = len(J)


class N(IntEnum):
    """Words of a record's line of counters."""

    DONE = 0
    SLEEPERS = 1  # threads asleep until all is done
    UNITS = 2


class H(IntEnum):
    """Lines of the head."""

    GENERATION = 0  # the newest job's number
    SLEEPERS = 1  # workers asleep until there is a newer one
    STOP = 2  # above 0: workers leave
    RING = 3  # addresses of `N_RING` jobs; job g stands at place g % N_RING
    HAZARDS = 4  # a line per worker: the job it is in, 0 = none


def n_lines(n_threads: int) -> int:
    """Pure. Lines of a head."""
    return H.HAZARDS + n_threads
