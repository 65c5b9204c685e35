"""The filters of the sampling chain, each a pure function from candidates to fewer candidates.

Enters: candidates (token ids and their logits). Leaves: those that may still be drawn, ids ascending. None of
them sorts the vocabulary: top-k partitions, top-p grows a partial selection, min-p compares with the maximum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# top-p without top-k: how many of the likeliest are sorted first, and by how much that grows when too few
FIRST_SELECTION = 256
SELECTION_GROWTH = 8


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that may still be drawn."""

    ids: NDArray[np.int64]  # [n] ascending
    logits: NDArray[np.float32]  # [n] f32

    def take(self, rows: NDArray[np.int64]) -> Candidates:
        """Pure. The candidates at `rows` (ascending)."""
        return Candidates(self.ids[rows], self.logits[rows])


def penalise(
    logits: NDArray[np.float32],
    tokens: NDArray[np.int64],  # [n] distinct ids in the window
    counts: NDArray[np.float32],  # [n] how often each is in it
    *,
    repeat: float,
    frequency: float,
    presence: float,
) -> NDArray[np.float32]:
    """Pure. A copy of `logits` [n_vocab] with the penalties taken off the recent tokens.

    Repetition first (CTRL: divide a positive logit, multiply any other), then frequency x count and presence.
    """
    out = logits.copy()
    recent = out[tokens]
    recent = np.where(recent > 0.0, recent / np.float32(repeat), recent * np.float32(repeat))
    out[tokens] = recent - counts * np.float32(frequency) - np.float32(presence)
    return out


def largest(logits: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Pure. Rows of the `k` largest, ascending; of equal logits at the border the lowest rows are kept."""
    border = np.partition(logits, -k)[-k]
    above = np.flatnonzero(logits > border)
    equal = np.flatnonzero(logits == border)
    return np.sort(np.concatenate((above, equal[: k - len(above)])))


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Pure. The `k` likeliest; 0 or more than there are keeps all."""
    if k == 0 or k >= len(candidates.ids):
        return candidates
    return candidates.take(largest(candidates.logits, k))


def top_p(candidates: Candidates, p: float) -> Candidates:
    """Pure. The fewest of the likeliest whose probabilities sum to `p`; at least one (arXiv:1904.09751)."""
    if p >= 1.0:
        return candidates
    logits, n = candidates.logits, len(candidates.ids)
    weights = np.exp(logits - logits.max())
    target = p * float(weights.sum(dtype=np.float64))
    k = min(FIRST_SELECTION, n)
    while True:
        rows = largest(logits, k) if k < n else np.arange(n)
        rows = rows[np.argsort(-logits[rows], kind="stable")]
        reached = np.cumsum(weights[rows], dtype=np.float64)
        if k == n or reached[-1] >= target:
            break
        k = min(k * SELECTION_GROWTH, n)
    n_kept = min(int(np.searchsorted(reached, target)) + 1, k)
    return candidates.take(np.sort(rows[:n_kept]))


def min_p(candidates: Candidates, p: float) -> Candidates:
    """Pure. Those at least `p` times as likely as the likeliest (arXiv:2407.01082)."""
    if p <= 0.0:
        return candidates
    border = float(candidates.logits.max()) + math.log(p)
    return candidates.take(np.flatnonzero(candidates.logits >= border))
