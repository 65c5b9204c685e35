"""The equal cut: the same number of rows from each of several disjoint sequence sets, laid out set by set.

For memories whose streams or states must advance in step. With `n_keep_tail` = k the last k rows of a set always
stay together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from polyseq.batch.checked import CheckedBatch
from polyseq.errors import SplitError
from polyseq.split import reason
from polyseq.split.own_streams import refuse_shared_rows
from polyseq.split.ready import waiting_rows
from polyseq.split.rows import n_rows
from polyseq.split.spans import n_whole
from polyseq.split.splitter import Cut, Splitter


@dataclass(frozen=True, slots=True)
class Equal:
    """`sequential`: the sets' sequence ids are consecutive, and no row is shared."""

    sequential: bool = False
    n_keep_tail: int = 0

    name: ClassVar[str] = "equal"

    def check(self, batch: CheckedBatch, n_ubatch: int) -> None:
        """Pure. Raises `CoupledSequences` or `SplitError`."""
        if self.n_keep_tail and n_ubatch <= self.n_keep_tail:
            raise SplitError(
                f"n_ubatch is {n_ubatch}, but the last {self.n_keep_tail} rows of a sequence must stay together; "
                f"it must be at least {self.n_keep_tail + 1}",
                least=self.n_keep_tail + 1,
            )
        if self.n_keep_tail and batch.span is not None:
            raise SplitError("spans are for memories without running states, whose last rows stay together")
        if self.sequential:
            refuse_shared_rows(batch)

    def next_cut(self, splitter: Splitter, n_ubatch: int) -> Cut:
        """Pure."""
        batch = splitter.batch
        if batch.n_sets == 1 and splitter.in_order and not self.n_keep_tail:
            rows = splitter.next_rows(n_ubatch)
            n = n_rows(rows)
            ended = reason.FULL if n == n_ubatch else reason.SPAN
            return Cut(rows, n_seqs=1, n_seq_tokens=n, equal_seqs=True, reason=ended)
        if splitter.n_used == 0 and self._is_one_round(batch, n_ubatch):
            n = batch.n_tokens
            return Cut(slice(0, n), n_seqs=n, n_seq_tokens=1, equal_seqs=True, reason=reason.BATCH_ENDED)
        return self._next_rectangle(splitter, n_ubatch)

    def _is_one_round(self, batch: CheckedBatch, n_ubatch: int) -> bool:
        """One row of each sequence in rising order, all of which this cut takes together: a step of decoding."""
        by_seq, n = batch.by_seq, batch.n_tokens
        if batch.coupled or n > n_ubatch or not (by_seq.one_each and by_seq.in_order):
            return False
        return not self.sequential or int(by_seq.seq[-1] - by_seq.seq[0]) == n - 1

    def _next_rectangle(self, splitter: Splitter, n_ubatch: int) -> Cut:
        batch = splitter.batch
        first = splitter.first_unused()
        n_left = splitter.set_sizes - splitter.set_used
        if batch.coupled:
            n_ready = _ready_per_set(splitter)
            chosen = _choose_disjoint(batch, first, n_ready, n_ubatch)
        else:
            n_ready = n_left
            chosen = (_choose_consecutive if self.sequential else _choose_first)(splitter, first, n_ubatch)
        n_each = min(int(n_ready[chosen].min()), n_ubatch // len(chosen))
        ended = self._why_no_more(chosen, n_each, n_left, n_ready, n_ubatch)
        if batch.span is not None:
            kept, n_kept = _keep_spans(splitter, batch.span, chosen, n_each, n_ready, n_ubatch)
            if len(kept) < len(chosen) or n_kept != n_each:
                ended = reason.SPAN
            chosen, n_each = kept, n_kept
        if self.n_keep_tail:
            kept, n_kept = self._keep_tails(chosen, n_each, n_left, n_ready, n_ubatch)
            if len(kept) < len(chosen) or n_kept != n_each:
                ended = reason.TAIL
            chosen, n_each = kept, n_kept
        at = batch.set_offsets[chosen] + splitter.set_used[chosen]
        rows = batch.set_rows[at[:, None] + np.arange(n_each)].reshape(-1)
        return Cut(rows, n_seqs=len(chosen), n_seq_tokens=n_each, equal_seqs=True, reason=ended)

    def _why_no_more(
        self,
        chosen: NDArray[np.intp],
        n_each: int,
        n_left: NDArray[np.intp],
        n_ready: NDArray[np.intp],
        n_ubatch: int,
    ) -> str:
        """What kept another set, or another round of rows, out."""
        open_sets = int(np.count_nonzero(n_left))
        if len(chosen) < open_sets and (len(chosen) + 1) * n_each <= n_ubatch:
            return reason.NOT_CONSECUTIVE if self.sequential else reason.OVERLAP
        shortest = chosen[n_ready[chosen].argmin()]
        if n_ready[shortest] > n_each:
            return reason.FULL
        if n_left[shortest] > n_ready[shortest]:
            return reason.WAITS
        return reason.SEQUENCE_ENDED if (n_left[chosen] > n_each).any() else reason.FULL

    def _keep_tails(
        self,
        chosen: NDArray[np.intp],
        n_each: int,
        n_left: NDArray[np.intp],
        n_ready: NDArray[np.intp],
        n_ubatch: int,
    ) -> tuple[NDArray[np.intp], int]:
        """Put back sets that would be torn inside their last n_keep_tail rows."""
        rest = n_left[chosen] - n_each
        torn = (rest != 0) & (rest < self.n_keep_tail)
        n_valid = int(torn.argmax()) if torn.any() else len(chosen)
        if n_valid:
            return chosen[:n_valid], n_each
        alone = chosen[:1]
        total = int(n_left[alone[0]])
        wanted = total if total <= n_ubatch else total - self.n_keep_tail
        # Rows that wait for another set's row cannot be had, tail or not: order comes first.
        return alone, min(wanted, int(n_ready[alone[0]]))


def _keep_spans(
    splitter: Splitter,
    span: NDArray[np.int32],
    chosen: NDArray[np.intp],
    n_each: int,
    n_ready: NDArray[np.intp],
    n_ubatch: int,
) -> tuple[NDArray[np.intp], int]:
    """The most rounds that end inside no set's span; where every round would, the first set alone."""
    left = [_left_of(splitter, k)[: n_each + 1] for k in chosen.tolist()]
    n = n_each
    while n:  # each set may end earlier than the one before it allows, and then it is their turn again
        least = min(n_whole(span, rows, n) for rows in left)
        if least == n:
            return chosen, n
        n = least
    alone = int(chosen[0])
    return chosen[:1], n_whole(span, _left_of(splitter, alone), min(int(n_ready[alone]), n_ubatch))


def _left_of(splitter: Splitter, k: int) -> NDArray[np.intp]:
    """The unused rows of a set, in order."""
    batch = splitter.batch
    return batch.set_rows[batch.set_offsets[k] + splitter.set_used[k] : batch.set_offsets[k + 1]]


def _choose_first(splitter: Splitter, first: NDArray[np.intp], n_ubatch: int) -> NDArray[np.intp]:
    """Disjoint sets, by their first unused row."""
    n_open = int(np.count_nonzero(first < splitter.batch.n_tokens))
    return first.argsort()[: min(n_open, n_ubatch)]


def _choose_consecutive(splitter: Splitter, first: NDArray[np.intp], n_ubatch: int) -> NDArray[np.intp]:
    """Scan unused rows in order, taking each whose sequence id follows the last one taken.

    Sets are numbered by sequence id here, so a run of consecutive sets is looked at as a whole; only where a set's
    first row lies before the last one taken is a later row of it searched for.
    """
    batch = splitter.batch
    k = int(first.argmin())
    run = first[k : k + n_ubatch]
    seq = batch.seq_ids[batch.set_rows[batch.set_offsets[k : k + len(run)]]]
    n_run = _leading((seq[1:] - seq[:-1] == 1) & (run[1:] < batch.n_tokens))
    n_fast = _leading(run[1:n_run] > run[: n_run - 1])
    row = int(run[n_fast - 1])
    for j in range(k + n_fast, k + n_run):
        rows = batch.set_rows[batch.set_offsets[j] + splitter.set_used[j] : batch.set_offsets[j + 1]]
        i = int(rows.searchsorted(row))
        if i == len(rows):
            return np.arange(k, j)
        row = int(rows[i])
    return np.arange(k, k + n_run)


def _leading(follows: NDArray[np.bool_]) -> int:
    """How many items stand in the leading run: 1 + the True ones before the first False."""
    return 1 + (len(follows) if follows.all() else int(follows.argmin()))


def _ready_per_set(splitter: Splitter) -> NDArray[np.intp]:
    """[n_sets] how many of a set's next rows wait for nobody: its rows before the first one that waits."""
    batch = splitter.batch
    waits = waiting_rows(batch, splitter.blocker, splitter.used)[batch.set_rows]
    before = np.concatenate(([0], np.cumsum(waits)))
    clear = before[1:] == np.repeat(before[batch.set_offsets[:-1]], splitter.set_sizes)
    n_clear = np.add.reduceat(clear.astype(np.intp), batch.set_offsets[:-1])
    return n_clear - splitter.set_used


def _choose_disjoint(
    batch: CheckedBatch, first: NDArray[np.intp], n_ready: NDArray[np.intp], n_ubatch: int
) -> NDArray[np.intp]:
    """Sets by their first unused row, each disjoint from those before it and with a row that waits for nobody."""
    chosen: list[int] = []
    taken = np.zeros(batch.sets.shape[1], np.uint64)
    for k in np.argsort(first):
        if n_ready[k] and not (batch.sets[k] & taken).any():
            chosen.append(int(k))
            taken |= batch.sets[k]
            if len(chosen) == n_ubatch:
                break
    return np.array(chosen)
