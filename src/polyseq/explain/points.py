"""Which calls are measured: shapes that differ in one thing each, so that a fit can tell their costs apart.

Enters: how large a call may be. Leaves: `Point`s, in the order in which a round runs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Point:
    """One call: `rows[i]` rows of sequence i, of which memory holds `past[i]` cells."""

    curve: Literal["rows", "sequences", "cells", "outputs", "mixed"]
    unified: bool
    past: tuple[int, ...]
    rows: tuple[int, ...]
    outputs: Literal["none", "last", "all"]

    @property
    def n_rows(self) -> int:
        return sum(self.rows)

    @property
    def name(self) -> str:
        memory = "unified" if self.unified else "streams"
        return f"{memory}: {self.n_rows} rows of {len(self.rows)} after {max(self.past)}"

    @property
    def for_bytes(self) -> bool:
        """Whether its bytes are measured too: one sequence of an empty memory, so one ubatch."""
        return self.unified and len(self.rows) == 1 and self.past == (0,) and self.n_rows in (4, 16, 64, 256)


def choose_points(
    *, most_rows: int, n_cells: int, n_cells_stream: int, n_streams: int, n_seqs: int
) -> tuple[Point, ...]:
    """Pure. Calls of at most `most_rows` rows; `n_cells` cells in all when unified, `n_cells_stream` per stream."""
    points: list[Point] = []
    for n in (1, 2, 4, 8, 16, 32, 48, 64, 128, 256, 512):
        if n <= min(most_rows, n_cells):
            points.append(Point("rows", True, (0,), (n,), "last"))
    for n in (4, 16, 48):
        if n <= min(most_rows, n_cells):
            points.append(Point("outputs", True, (0,), (n,), "all"))
    for unified in (True, False):
        points += _decoding(unified, most_rows, *((n_seqs, n_cells) if unified else (n_streams, n_cells_stream)))
    chunk = min(64, most_rows - 4, n_cells_stream // 4)
    if chunk > 0 and min(n_streams, n_seqs) > 4:
        past = n_cells_stream // 4
        for unified in (True, False):
            points.append(Point("mixed", unified, (past,) * 4 + (0,), (1,) * 4 + (chunk,), "last"))
        points.append(Point("mixed", True, (n_cells - chunk,), (chunk,), "last"))
    return tuple(dict.fromkeys(points))


def _decoding(unified: bool, most_rows: int, n_most: int, n_cells: int) -> list[Point]:
    """Pure. One row for each of several sequences, after few cells and after many."""
    found = []
    for n in (1, 2, 4, 8, 16, 32):
        if n <= min(most_rows, n_most) and 17 * (n if unified else 1) <= n_cells:
            found.append(Point("sequences", unified, (16,) * n, (1,) * n, "all"))
    for n in (1, 8):
        for part in (1, 2, 4):
            past = n_cells // part // (n if unified else 1) - 1
            if n <= min(most_rows, n_most) and past > 16:
                found.append(Point("cells", unified, (past,) * n, (1,) * n, "all"))
    return found
