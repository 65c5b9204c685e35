"""Step 6 while a call runs: each ubatch's results, until they are asked for by the caller's rows.

Enters: result rows, ubatch after ubatch. Leaves: `Outputs` of the whole call, or of what was finished of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from polyseq.never_ran import NOTHING, NeverRan
from polyseq.outputs import Outputs, RowChunks
from polyseq.pooled import PooledRows
from polyseq.split.rows import n_rows, row_indexes
from polyseq.split.ubatch import Ubatch

Results = Mapping[str, NDArray[np.float32]]  # of one ubatch, by name


class OutputCollector:
    """Takes the results of each ubatch as they come; `finish` gives the `Outputs`."""

    def __init__(
        self, *, n_vocab: int, n_embd: int, logits: bool, pooled: bool, hidden: bool, layers: tuple[int, ...]
    ) -> None:
        self._n_vocab = n_vocab
        self._n_embd = n_embd
        self._logits, self._pooled, self._hidden, self._layers = logits, pooled, hidden, layers
        self._done: list[tuple[Ubatch, Results]] = []

    def collect(self, ubatch: Ubatch, results: Results) -> None:
        """Changes the collector: keeps one ubatch's results, which must own their data."""
        self._done.append((ubatch, results))

    def finish(self) -> Outputs:
        """Pure. The results of all rows."""
        return self._outputs(self._done, NOTHING)

    def finish_early(self, ubatches: Sequence[Ubatch], n_finished: int, why: str) -> Outputs:
        """Pure. The results of the first ubatches of a call, of which more may have come in; `why` there are no more.

        n_finished >= 1.
        """
        lost = ubatches[n_finished:]
        never_ran = NeverRan(
            np.sort(np.concatenate([NOTHING.rows, *(row_indexes(ubatch.rows) for ubatch in lost)])),
            np.unique(np.concatenate([NOTHING.seq_ids, *(ubatch.seq_id_unq for ubatch in lost)])),
            why,
        )
        return self._outputs(self._done[:n_finished], never_ran)

    def _outputs(self, done: Sequence[tuple[Ubatch, Results]], never_ran: NeverRan) -> Outputs:
        rows = [ubatch.rows for ubatch, _ in done]
        drawn = [(ubatch, results) for ubatch, results in done if len(ubatch.out_rows)]

        def chunks(name: str) -> RowChunks:
            return RowChunks([results[name] for _, results in done], self._n_embd)

        return Outputs(
            n_rows=sum(map(n_rows, rows)) + len(never_ran.rows),
            out_ids=np.concatenate([ubatch.out_ids for ubatch, _ in drawn]) if drawn else np.zeros(0, np.intp),
            logits=RowChunks([results["logits"] for _, results in drawn], self._n_vocab) if self._logits else None,
            rows=rows,
            hidden=chunks("hidden") if self._hidden else None,
            layers={il: chunks(f"layer.{il}") for il in self._layers},
            pooled=PooledRows([ubatch.seq_id_unq for ubatch, _ in done], [results["pooled"] for _, results in done])
            if self._pooled
            else None,
            never_ran=never_ran,
        )
