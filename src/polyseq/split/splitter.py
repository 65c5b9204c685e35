"""Step 3: cut a checked batch into ubatches.

Enters: a `CheckedBatch` and a strategy. Leaves: ubatches, one at a time, until every row was used once. The splitter
only remembers which rows are used, how far each sequence set has come, and in which order outputs were met.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from polyseq.batch.checked import CheckedBatch
from polyseq.errors import SplitError
from polyseq.lazy import lazy
from polyseq.split import reason
from polyseq.split.ready import blockers
from polyseq.split.rows import Rows, n_rows, row_indexes
from polyseq.split.spans import n_whole, refuse_long_spans
from polyseq.split.ubatch import Ubatch


@dataclass(frozen=True, slots=True)
class Cut:
    """The rows that a strategy chose for the next ubatch."""

    rows: Rows  # [n_tokens] batch rows, in ubatch order
    n_seqs: int
    n_seq_tokens: int
    equal_seqs: bool
    reason: str  # why there are no more rows, if rows are left; of split.reason


class Strategy(Protocol):
    """One way to choose the next rows. Holds settings only; what was used so far is the splitter's."""

    name: ClassVar[str]

    def check(self, batch: CheckedBatch, n_ubatch: int) -> None:
        """Pure. Raises `SplitError` where this batch cannot be cut this way."""

    def next_cut(self, splitter: Splitter, n_ubatch: int) -> Cut:
        """Pure. At least one unused row, at most n_ubatch; called only while rows are left."""


@dataclass(slots=True)
class _Marks:
    """A column over rows or sets that is brought up to date when it is asked for."""

    values: NDArray[Any]
    n_cuts: int = 0  # how many cuts it knows of


class Splitter:
    """Which rows of a batch are used. What is public is read by strategies, changed only by `split` and `reset`."""

    def __init__(self, batch: CheckedBatch) -> None:
        self.batch = batch
        self.reset()

    @lazy
    def set_sizes(self) -> NDArray[np.intp]:
        """[n_sets] rows of each set."""
        bounds = self.batch.set_offsets
        sizes: NDArray[np.intp] = bounds[1:] - bounds[:-1]
        return sizes

    @lazy
    def blocker(self) -> NDArray[np.intp]:
        """[n_pairs] the row that each (row, sequence) pair waits for; only shared rows make anybody wait."""
        return blockers(self.batch)

    def reset(self) -> None:
        """Changes the splitter: nothing is used, no outputs were met."""
        self.n_used = 0
        self.in_order = True  # the used rows are the batch's first ones
        self._taken: list[Rows] = []  # of each cut
        self._used = _Marks(np.zeros(self.batch.n_tokens, np.bool_))
        self._set_used = _Marks(np.zeros(self.batch.n_sets, np.intp))

    @property
    def n_left(self) -> int:
        """Rows not used yet."""
        return self.batch.n_tokens - self.n_used

    @property
    def used(self) -> NDArray[np.bool_]:
        """[n_tokens] which rows are used; read-only."""
        marks = self._used
        for rows in self._taken[marks.n_cuts :]:
            marks.values[rows] = True
        marks.n_cuts = len(self._taken)
        return marks.values

    @property
    def set_used(self) -> NDArray[np.intp]:
        """[n_sets] rows used of each set, always its first ones; read-only."""
        marks = self._set_used
        set_used: NDArray[np.intp] = marks.values
        for rows in self._taken[marks.n_cuts :]:
            set_used += np.bincount(self.batch.i_set[rows], minlength=self.batch.n_sets)
        marks.n_cuts = len(self._taken)
        return set_used

    @property
    def out_ids(self) -> NDArray[np.intp]:
        """[outputs met so far] batch rows of outputs, in the order met."""
        met: NDArray[np.intp] = np.concatenate([np.zeros(0, np.intp), *map(row_indexes, self._taken)])
        outputs: NDArray[np.intp] = met[self.batch.output[met]]
        return outputs

    def first_unused(self) -> NDArray[np.intp]:
        """[n_sets] the first unused row of each set, n_tokens where none is left."""
        batch = self.batch
        set_used = self.set_used
        at = batch.set_offsets[:-1] + set_used
        rows: NDArray[np.intp] = batch.set_rows[np.minimum(at, batch.n_tokens - 1)]
        rows[set_used == self.set_sizes] = batch.n_tokens
        return rows

    def next_rows(self, n: int) -> Rows:
        """[up to n] the next unused rows in batch order; fewer where that would tear a span."""
        span, start, stop = self.batch.span, self.n_used, min(self.n_used + n, self.batch.n_tokens)
        if not self.in_order:
            unused = np.flatnonzero(~self.used)
            return unused[: n_whole(span, unused, n)]
        if span is not None:
            stop = start + n_whole(span, np.arange(start, min(stop + 1, self.batch.n_tokens)), n)
        return slice(start, stop)

    def split(self, strategy: Strategy, n_ubatch: int) -> Ubatch | None:
        """Changes the splitter: uses the next rows and returns them, or None when none are left.

        Raises `SplitError` where the batch cannot be cut this way; nothing is used then.
        """
        if n_ubatch < 1:
            raise SplitError(f"n_ubatch is {n_ubatch}, an ubatch holds at least 1 row", least=1)
        strategy.check(self.batch, n_ubatch)
        refuse_long_spans(self.batch, n_ubatch)
        if self.n_left == 0:
            return None
        cut = strategy.next_cut(self, n_ubatch)
        self.in_order = self.in_order and isinstance(cut.rows, slice) and cut.rows.start == self.n_used
        self._taken.append(cut.rows)
        self.n_used += n_rows(cut.rows)
        return Ubatch(
            self.batch,
            cut.rows,
            n_seqs=cut.n_seqs,
            n_seq_tokens=cut.n_seq_tokens,
            equal_seqs=cut.equal_seqs,
            reason=cut.reason if self.n_left else reason.BATCH_ENDED,
        )

    def check(self) -> None:
        """Pure. Asserts the splitter's invariants; for tests."""
        assert self.n_used == np.count_nonzero(self.used)
        assert self.n_used == self.set_used.sum()
        batch = self.batch
        for k in range(batch.n_sets):
            rows = batch.set_rows[batch.set_offsets[k] : batch.set_offsets[k + 1]]
            assert self.used[rows[: self.set_used[k]]].all()
            assert not self.used[rows[self.set_used[k] :]].any()


def split_all(batch: CheckedBatch, strategy: Strategy, n_ubatch: int) -> list[Ubatch]:
    """Pure. All ubatches of a batch."""
    splitter = Splitter(batch)
    ubatches = []
    while (ubatch := splitter.split(strategy, n_ubatch)) is not None:
        ubatches.append(ubatch)
    return ubatches
