"""Step 1, the old form: llama.cpp's `llama_batch`, parallel arrays of which most may be missing.

Enters: arrays as a caller of the C interface would fill them. Leaves: a `Batch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from polyseq.batch.batch import Batch
from polyseq.errors import BadColumn, EmptyBatch


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """llama.cpp's flat batch. What is None takes its old meaning: no positions = continue each sequence after the
    last position in memory; no sequences = sequence 0; no output flags = the last row only.
    """

    token: ArrayLike | None = None  # [n_tokens] i32
    embd: ArrayLike | None = None  # [n_tokens, n_embd] f32
    pos: ArrayLike | None = None  # [n_tokens]; embedding rows of M-RoPE models: [n_pos * n_tokens], section-major
    seq_id: Sequence[int] | Sequence[Iterable[int]] | None = None  # [n_tokens] ids, or lists of ids
    output: ArrayLike | None = None  # [n_tokens] 0 / 1

    def to_batch(self, *, n_pos: int = 1) -> Batch:
        """Pure. The same rows as a `Batch`; raises `EmptyBatch`, `BadColumn` or another `BatchError`."""
        content = self.token if self.token is not None else self.embd
        shape = np.shape(content) if content is not None else (0,)
        if not shape:
            raise BadColumn("token and embd are columns: one entry for each row")
        n = shape[0]
        if n == 0:
            raise EmptyBatch("a flat batch without rows")
        output = np.arange(n) == n - 1 if self.output is None else self.output
        batch = Batch(n_pos=n_pos)
        batch.extend(
            self.token,
            seq=0 if self.seq_id is None else self.seq_id,
            pos=self._pos_sections(n, n_pos),
            output=output,
            embd=self.embd,
        )
        return batch

    def _pos_sections(self, n: int, n_pos: int) -> ArrayLike | None:
        """Embedding rows of M-RoPE models give `pos[j * n_tokens + i]`, section j of row i."""
        if self.pos is None or n_pos == 1 or self.token is not None:
            return self.pos
        flat = np.asarray(self.pos)
        if flat.shape != (n_pos * n,):
            raise BadColumn(
                f"pos has shape {flat.shape}; {n} embedding rows of {n_pos} sections take [{n_pos * n}], section-major",
                value=flat.shape,
                limit=n_pos * n,
            )
        return flat.reshape(n_pos, n)
