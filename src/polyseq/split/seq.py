"""The seq cut: one sequence set after the other, each as long as n_ubatch allows.

For compute that needs a whole sequence in one ubatch (attention that is not causal, embeddings).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from polyseq.batch.checked import CheckedBatch
from polyseq.split import reason
from polyseq.split.rows import Rows, n_rows, row_indexes
from polyseq.split.spans import n_whole
from polyseq.split.splitter import Cut, Splitter


@dataclass(frozen=True, slots=True)
class Seq:
    """Rows whose set is a subset of the current set, which narrows to each row taken."""

    name: ClassVar[str] = "seq"

    def check(self, batch: CheckedBatch, n_ubatch: int) -> None:
        """Pure. Any batch will do."""

    def next_cut(self, splitter: Splitter, n_ubatch: int) -> Cut:
        """Pure."""
        batch = splitter.batch
        rows = _narrowing_rows(splitter, n_ubatch) if batch.coupled else _rest_of_a_set(splitter, n_ubatch)
        n = n_rows(rows)
        ended = reason.FULL if n == n_ubatch else reason.SEQUENCE_ENDED
        if n < n_ubatch and batch.span is not None and _has_more(splitter, row_indexes(rows)):
            ended = reason.SPAN
        return Cut(rows, n_seqs=1, n_seq_tokens=n, equal_seqs=True, reason=ended)


def _has_more(splitter: Splitter, rows: NDArray[np.intp]) -> bool:
    """The last of these rows is not the last of its set."""
    i_set = splitter.batch.i_set[rows]
    k = i_set[-1]
    return bool(splitter.set_used[k] + np.count_nonzero(i_set == k) < splitter.set_sizes[k])


def _rest_of_a_set(splitter: Splitter, n_ubatch: int) -> Rows:
    """What is left of the set that the first unused row belongs to."""
    batch = splitter.batch
    if splitter.in_order and batch.by_seq.in_order:
        start = splitter.n_used
        set_end = int(batch.set_offsets[batch.set_offsets.searchsorted(start, side="right")])
        n = min(n_ubatch, set_end - start)
        return slice(start, start + (n if batch.span is None else n_whole(batch.span, np.arange(start, set_end), n)))
    k = int(np.argmin(splitter.first_unused()))
    left = batch.set_rows[batch.set_offsets[k] + splitter.set_used[k] : batch.set_offsets[k + 1]]
    return left[: n_whole(batch.span, left, n_ubatch)]


def _narrowing_rows(splitter: Splitter, n_ubatch: int) -> NDArray[np.intp]:
    """Walk runs of unused rows with one set that share a sequence with the first; a run is passed over where its set is
    no subset of the current one, or shares a sequence with a run passed over before it.
    """
    batch = splitter.batch
    unused = np.flatnonzero(~splitter.used)
    i_set = batch.i_set[unused]
    current = batch.sets[i_set[0]]
    unused = unused[(batch.sets & current).any(axis=1)[i_set]]
    i_set = batch.i_set[unused]
    starts = np.concatenate(([0], np.flatnonzero(i_set[1:] != i_set[:-1]) + 1))
    ends = np.append(starts[1:], len(unused))
    passed = np.zeros_like(current)
    taken: list[NDArray[np.intp]] = []
    room = n_ubatch
    for start, end in zip(starts, ends, strict=True):
        row_set = batch.sets[i_set[start]]
        if (row_set & ~current).any() or (row_set & passed).any():
            passed = passed | row_set
        else:
            run = unused[start:end]
            taken.append(run[: n_whole(batch.span, run, room)])
            room = room - len(run) if len(taken[-1]) == len(run) else 0
            current = row_set
        if room == 0 or not (current & ~passed).any():
            break
    return np.concatenate(taken)
