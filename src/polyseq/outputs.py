"""Step 6: results back in the caller's order.

Enters: result rows in ubatch order (collector.py). Leaves: `Outputs`, which find the row for an index of the caller's
batch. Rows stay where they were collected: asking is a look-up, nothing is sorted or moved. Of a call that ended early
there are the rows of its finished ubatches; the others say why they are not there.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyseq.errors import CapabilityError, OutputError
from polyseq.lazy import lazy
from polyseq.never_ran import NOTHING, NeverRan, some
from polyseq.pooled import PooledRows
from polyseq.split.rows import Rows, row_indexes


class RowChunks:
    """Rows of one width in the arrays they were computed in, numbered through; nothing is copied until asked for."""

    def __init__(self, chunks: Sequence[NDArray[np.float32]], width: int) -> None:
        self._computed = chunks or [np.zeros((0, width), np.float32)]
        self.chunks = [chunk.view() for chunk in self._computed]
        for chunk in self.chunks:
            chunk.flags.writeable = False  # rows are handed out without a copy
        self.width = width
        self._ends = list(accumulate(map(len, self.chunks)))

    def row(self, k: int) -> NDArray[np.float32]:
        """[width] f32, no copy."""
        i = bisect_right(self._ends, k)
        row: NDArray[np.float32] = self.chunks[i][k - self._ends[i]]
        return row

    def argmax(self) -> NDArray[np.intp]:
        """[n] where each row is largest, first of equals. NumPy would copy rows that it may not write to."""
        return np.concatenate([rows.argmax(axis=1) for rows in self._computed])

    def take(self, order: NDArray[np.intp]) -> NDArray[np.float32]:
        """[n, width] f32 in the order given; a copy only where that is not the one at hand."""
        rows = self.chunks[0] if len(self.chunks) == 1 else np.concatenate(self.chunks)
        return rows if np.array_equal(order, np.arange(len(rows))) else rows[order]


class Outputs:
    """What one `decode` call computed. Owns its data; the next call never changes it.

    `logits(i)` and the others take the caller's row index; negative ones count back from the last output row.
    """

    def __init__(
        self,
        *,
        n_rows: int,
        out_ids: NDArray[np.intp],
        logits: RowChunks | None,
        rows: Sequence[Rows],
        hidden: RowChunks | None,
        layers: Mapping[int, RowChunks],
        pooled: PooledRows | None = None,
        never_ran: NeverRan = NOTHING,
    ) -> None:
        """out_ids [n_outputs]: the batch row of each row of logits (n_vocab wide). rows, ubatch by ubatch: the batch
        rows of hidden and layers (n_embd wide). Two permutations, each with its own data, worked out when asked for.
        """
        self.never_ran = never_ran
        self.n_rows = n_rows
        self._out_ids = out_ids
        self._rows = rows
        self._maybe_logits = logits
        self._hidden = hidden
        self._layers = layers
        self._pooled = pooled

    @property
    def n_outputs(self) -> int:
        """Rows whose output was asked for."""
        return len(self._out_ids)

    @lazy
    def rows(self) -> NDArray[np.intp]:
        """[n_outputs] batch rows with an output, ascending."""
        return np.sort(self._out_ids)

    @lazy
    def _output_ids(self) -> NDArray[np.intp]:
        """[n_rows] batch row -> row of logits, -1 where no output was asked for."""
        ids = np.full(self.n_rows, -1, np.intp)
        ids[self._out_ids] = np.arange(len(self._out_ids))
        return ids

    @lazy
    def _token_ids(self) -> NDArray[np.intp]:
        """[n_rows] batch row -> row of hidden and layers, -1 where it never ran."""
        ids = np.full(self.n_rows, -1, np.intp)
        ran = np.concatenate([row_indexes(rows) for rows in self._rows])
        ids[ran] = np.arange(len(ran))
        return ids

    # ---- per output row --------------------------------------------------------------------------------

    def logits(self, i: int) -> NDArray[np.float32]:
        """[n_vocab] f32 of batch row i, read-only, no copy. Raises `OutputError`."""
        return self._logits.row(self._output_row(i))

    def all_logits(self) -> NDArray[np.float32]:
        """[n_outputs, n_vocab] f32 in the order of `rows`; a copy only where that order is not the computed one."""
        return self._logits.take(self._order)

    def argmax(self) -> NDArray[np.int32]:
        """[n_outputs] i32, the best token of every output row, in the order of `rows`; the lowest id on a tie."""
        return self._logits.argmax()[self._order].astype(np.int32)

    def logsumexp(self) -> NDArray[np.float32]:
        """[n_outputs] f32 over the vocabulary, in the order of `rows`."""
        totals = np.concatenate([_logsumexp(rows) for rows in self._logits.chunks])
        return totals[self._order]

    def logprobs(self, tokens: ArrayLike) -> NDArray[np.float32]:
        """[n_outputs] f32, the log-probability of one token at each output row, in the order of `rows`.

        tokens [n_outputs] ints.
        """
        ids = np.asarray(tokens)
        ids = ids.astype(np.intp) if not ids.size else ids
        n_vocab = self._logits.width
        if ids.dtype.kind not in "iu":
            raise OutputError(f"tokens are ids, not {ids.dtype}")
        if ids.shape != (self.n_outputs,):
            raise OutputError(f"{self.n_outputs} output rows take {self.n_outputs} tokens, not shape {ids.shape}")
        if len(ids) and not 0 <= ids.min() <= ids.max() < n_vocab:
            raise OutputError(f"a token is outside the vocabulary [0, {n_vocab})")
        by_result = np.empty_like(ids)
        by_result[self._order] = ids
        bounds = np.cumsum([0, *map(len, self._logits.chunks)])
        chosen = [
            rows[np.arange(len(rows)), by_result[at : at + len(rows)]]
            for at, rows in zip(bounds, self._logits.chunks, strict=False)
        ]
        logprobs: NDArray[np.float32] = np.concatenate(chosen)[self._order] - self.logsumexp()
        return logprobs

    def top_k(self, i: int, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """([k] ids, [k] logits) of batch row i, best first."""
        row = self.logits(i)
        if k < 1:
            raise OutputError(f"top_k: k is {k}, it must be at least 1")
        k = min(k, len(row))
        best = np.argpartition(row, len(row) - k)[len(row) - k :]
        best = best[np.lexsort((best, -row[best]))]
        return best.astype(np.int32), row[best]

    # ---- per sequence ----------------------------------------------------------------------------------

    @property
    def seq_ids(self) -> NDArray[np.int32]:
        """[n_seqs] i32, the sequences that were pooled, ascending."""
        return self._kept_pooled().seq_ids

    def pooled(self, seq_id: int) -> NDArray[np.float32]:
        """[n_embd] f32 (with rank: [labels]) of a sequence, read-only, no copy. Needs a context with `pooling`."""
        rows = self._kept_pooled()
        self.never_ran.refuse_seq(seq_id)
        return rows.row(seq_id)

    def all_pooled(self) -> NDArray[np.float32]:
        """[n_seqs, n_embd] f32 (with rank: labels wide) in the order of `seq_ids`, read-only, no copy."""
        return self._kept_pooled().rows

    # ---- per token -------------------------------------------------------------------------------------

    def hidden(self, i: int) -> NDArray[np.float32]:
        """[n_embd] f32 of batch row i after the final norm, no copy. Needs `keep_hidden=True` at the context."""
        return self._kept_hidden().row(self._token_row(i))

    def layer(self, il: int, i: int) -> NDArray[np.float32]:
        """[n_embd] f32, what batch row i brought into layer il. Needs `keep_layers=(il, ...)` at the context."""
        return self._kept_layer(il).row(self._token_row(i))

    def all_hidden(self) -> NDArray[np.float32]:
        """[n_rows, n_embd] f32 in the caller's order; a copy only where that is not the computed one."""
        rows = self._kept_hidden()
        self.never_ran.refuse_all()
        return rows.take(self._token_ids)

    def all_layer(self, il: int) -> NDArray[np.float32]:
        """[n_rows, n_embd] f32, the input rows of layer il in the caller's order; copied as in `all_hidden`."""
        rows = self._kept_layer(il)
        self.never_ran.refuse_all()
        return rows.take(self._token_ids)

    @property
    def _order(self) -> NDArray[np.intp]:
        """[n_outputs] the row of logits of each output, in the caller's order."""
        return self._output_ids[self.rows]

    @property
    def _logits(self) -> RowChunks:
        if self._maybe_logits is None:
            raise CapabilityError(
                "this context gives embeddings, not logits; make one without pooling", remedy={"pooling": None}
            )
        return self._maybe_logits

    def _kept_pooled(self) -> PooledRows:
        if self._pooled is None:
            raise CapabilityError(
                "nothing was pooled; create the context with pooling='mean' or another way", remedy={"pooling": "mean"}
            )
        return self._pooled

    def _kept_hidden(self) -> RowChunks:
        if self._hidden is None:
            raise CapabilityError(
                "hidden rows were not kept; create the context with keep_hidden=True", remedy={"keep_hidden": True}
            )
        return self._hidden

    def _kept_layer(self, il: int) -> RowChunks:
        if il not in self._layers:
            kept = ", ".join(map(str, sorted(self._layers))) or "none"
            raise CapabilityError(
                f"the input of layer {il} was not kept (kept: {kept}); see keep_layers of the context",
                remedy={"keep_layers": (*sorted(self._layers), il)},
            )
        return self._layers[il]

    def _token_row(self, i: int) -> int:
        i = _as_index(i)
        if not -self.n_rows <= i < self.n_rows:
            raise OutputError(f"row {i} is outside the batch of {self.n_rows} rows")
        self.never_ran.refuse_row(i % self.n_rows)
        return int(self._token_ids[i])

    def _output_row(self, i: int) -> int:
        i, n = _as_index(i), self.n_outputs
        self.never_ran.refuse_row(i)
        if n == 0:
            asked = "that was computed" if len(self.never_ran.rows) else "of this batch"
            raise OutputError(
                f"row {i}: no row {asked} asked for an output",
                row=i,
                n_rows=self.n_rows,
                n_outputs=n,
            )
        if i < 0:
            if i < -n:
                raise OutputError(
                    f"output {i} is out of range: the batch has {n} outputs, -{n}..-1",
                    row=i,
                    n_rows=self.n_rows,
                    n_outputs=n,
                )
            return int(self._output_ids[self.rows[i]])
        if i >= self.n_rows:
            raise OutputError(
                f"row {i} is outside the batch of {self.n_rows} rows, 0..{self.n_rows - 1}",
                row=i,
                n_rows=self.n_rows,
                n_outputs=n,
            )
        if self._output_ids[i] < 0:
            raise OutputError(
                f"no output was requested at row {i}; outputs are at rows {some(self.rows)}",
                row=i,
                n_rows=self.n_rows,
                n_outputs=n,
            )
        return int(self._output_ids[i])


def _as_index(i: int) -> int:
    """Raises `OutputError` for what is no row index."""
    try:
        return operator.index(i)
    except TypeError:
        raise OutputError(f"a row is named by a whole number, not {i!r}") from None


def _logsumexp(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Row by row, so that only one row of exponentials is alive."""
    totals = np.empty(len(rows), np.float32)
    for k, row in enumerate(rows):
        top = row.max()
        totals[k] = top + np.log(np.exp(row - top).sum(dtype=np.float64))
    return totals
