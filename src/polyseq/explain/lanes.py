"""The cut as lanes: for each sequence, which ubatch each of its tokens is in.

Enters: a `Simulation`. Leaves: lanes for every kind of drawing; where there are many, neighbours that
look alike are folded into one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.explain.simulation import Simulation
from polyseq.explain.ways import Ways

_FOLD_ABOVE = 16  # sequences; so many are seen at once, each in a line of its own


@dataclass(frozen=True, slots=True)
class Lane:
    """Sequences `first..last`, all cut alike."""

    first: int
    last: int
    ubatch: NDArray[np.intp]  # [n_tokens] the ubatch of each token, in batch order
    own: NDArray[np.bool_]  # [n_tokens] False where a lower sequence shares the row, which is computed once

    @property
    def n_tokens(self) -> int:
        return len(self.ubatch)

    @property
    def label(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}..{self.last}"

    def segments(self) -> list[tuple[int, int, int, bool]]:
        """Pure. Runs of tokens in one ubatch: (first token, count, ubatch, own)."""
        breaks = (np.diff(self.ubatch) != 0) | (np.diff(self.own.view(np.int8)) != 0)
        starts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
        counts = np.diff(np.append(starts, self.n_tokens))
        return [
            (i, n, int(self.ubatch[i]), bool(self.own[i]))
            for i, n in zip(starts.tolist(), counts.tolist(), strict=True)
        ]


def lanes(simulation: Simulation, found: Ways) -> list[Lane]:
    """Pure. One lane per sequence, ids ascending; of many, neighbours with the same cut share a lane."""
    batch = simulation.checked
    by_seq = batch.by_seq
    ubatch = found.ubatch[by_seq.row]
    own = batch.first_seq[by_seq.row] == by_seq.seq
    ends = np.append(by_seq.starts[1:], len(by_seq.row))
    fold = len(by_seq.starts) > _FOLD_ABOVE
    made: list[Lane] = []
    for start, end in zip(by_seq.starts.tolist(), ends.tolist(), strict=True):
        seq = int(by_seq.seq[start])
        lane = Lane(seq, seq, ubatch[start:end], own[start:end])
        if made and fold and made[-1].last == seq - 1 and _alike(made[-1], lane):
            lane = Lane(made[-1].first, seq, lane.ubatch, lane.own)
            made.pop()
        made.append(lane)
    return made


def _alike(a: Lane, b: Lane) -> bool:
    return np.array_equal(a.ubatch, b.ubatch) and np.array_equal(a.own, b.own)
