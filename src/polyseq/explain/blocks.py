"""The ubatches as lines: shape, rows, sequences and the reason each ended.

Enters: a `Simulation`. Leaves: one line per ubatch, neighbours that are alike folded into one; used by every drawing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from polyseq.explain.palette import letter_of
from polyseq.explain.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Block:
    """Ubatches `first..last`, alike in all but their rows."""

    first: int
    last: int
    n_seqs: int
    n_seq_tokens: int
    n_tokens: int
    seq_ids: tuple[int, ...]  # distinct, ascending
    reason: str

    @property
    def label(self) -> str:
        one = letter_of(self.first)
        return one if self.first == self.last else f"{one}..{letter_of(self.last)} (x{self.last - self.first + 1})"

    @property
    def shape(self) -> str:
        """Sequence sets x rows of each, as in `Ubatch`; where these differ, rows in so many sets."""
        return f"{self.n_seqs}x{self.n_seq_tokens}" if self.n_seq_tokens else f"{self.n_tokens} in {self.n_seqs}"


def blocks(simulation: Simulation) -> list[Block]:
    """Pure. In the order of computation."""
    made: list[Block] = []
    for i, u in enumerate(simulation.ubatches):
        block = Block(i, i, u.n_seqs, u.n_seq_tokens, u.n_tokens, tuple(u.seq_id_unq.tolist()), u.reason)
        if made and replace(block, first=made[-1].first) == replace(made[-1], last=i):
            block = replace(block, first=made[-1].first)
            made.pop()
        made.append(block)
    return made


def id_ranges(ids: Iterable[int], n_max: int = 6) -> str:
    """Pure. (0, 1, 2, 7) -> '0..2, 7'; beyond `n_max` ranges only how many more."""
    ranges: list[list[int]] = []
    for i in ids:
        if ranges and ranges[-1][1] == i - 1:
            ranges[-1][1] = i
        else:
            ranges.append([i, i])
    words = [str(a) if a == b else f"{a}..{b}" for a, b in ranges[:n_max]]
    return ", ".join(words) + (f" and {len(ranges) - n_max} more" if len(ranges) > n_max else "")
