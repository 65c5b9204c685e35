"""The tables of a plan as rows of words: each run of rows' way, and the comparison. The same for terminal and page.

Enters: ways, candidates. Leaves: a `Listing`: heads and rows, of which the right-aligned columns are numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyseq.explain.blocks import Block, id_ranges
from polyseq.explain.compare import Candidate
from polyseq.explain.document import spread
from polyseq.explain.palette import letter_of
from polyseq.explain.ways import WayRun

_N_SHAPES = 3


@dataclass(frozen=True, slots=True)
class Listing:
    """A table of words."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int]  # columns aligned to the right

    def lines(self) -> list[str]:
        """Pure. Columns padded with blanks, two between them."""
        widths = [max(map(len, column)) for column in zip(self.heads, *self.rows, strict=True)]
        return [
            "  ".join(
                f"{word:>{w}}" if i in self.right else f"{word:<{w}}"
                for i, (word, w) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in (self.heads, *self.rows)
        ]


def way_listing(runs: Sequence[WayRun]) -> Listing:
    """Pure. A line per run of rows that go the same way."""
    rows = tuple(
        (
            _span(run.row, run.count),
            id_ranges(run.seq_ids),
            _span(run.pos, run.count),
            letter_of(run.ubatch),
            _span(run.ubatch_row, run.count),
            "-" if run.stream < 0 else str(run.stream),
            "-" if run.cell < 0 else _span(run.cell, run.count),
            "-" if run.output_row < 0 else str(run.output_row),
        )
        for run in runs
    )
    heads = ("batch row", "sequence", "pos", "ubatch", "its row", "stream", "cell", "output row")
    return Listing(heads, rows, frozenset((0, 2, 4, 5, 6, 7)))


def block_listing(blocks: Sequence[Block], n_ubatch: int) -> Listing:
    """Pure. A line per ubatch, neighbours that are alike in one."""
    rows = tuple(
        (b.label, b.shape, str(b.n_tokens), f"{b.n_tokens / n_ubatch:.0%}", b.reason, id_ranges(b.seq_ids))
        for b in blocks
    )
    return Listing(("ubatch", "shape", "rows", "fill", "ended because", "sequences"), rows, frozenset((1, 2, 3)))


def compare_listing(candidates: Sequence[Candidate]) -> Listing:
    """Pure. A line per way to compute the batch; a star marks the one planned."""
    heads = ("way", "blocks", "tokens per block", "fill", "shapes")
    lines = tuple(map(_compared, candidates))
    if all(c.seconds is None for c in candidates):
        return Listing(heads, lines, frozenset((1, 3)))
    times = ["-" if c.seconds is None else f"{1e3 * c.seconds:.0f} ms" for c in candidates]
    timed = tuple((*line[:4], time, line[4]) for line, time in zip(lines, times, strict=True))
    return Listing((*heads[:4], "time", heads[4]), timed, frozenset((1, 3, 4)))


def _compared(candidate: Candidate) -> tuple[str, ...]:
    name = candidate.name + (" *" if candidate.chosen else "")
    if candidate.refusal is not None:
        return name, "-", "refused", "-", "-"
    found = spread(candidate.blocks)
    shapes = ", ".join(s if n == 1 else f"{n} of {s}" for s, n in candidate.shapes[:_N_SHAPES])
    more = len(candidate.shapes) - _N_SHAPES
    return (
        name,
        str(len(candidate.blocks)),
        f"{found['min']} / {found['median']} / {found['max']}",
        f"{candidate.fill:.0%}",
        shapes + (f", {more} more" if more > 0 else ""),
    )


def _span(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}..{first + count - 1}"
