"""Token columns to pooled rows, through one context that is made for the longest of them.

Enters: columns in any number and of any length. Leaves: a row for each, in the order given. What is equal is computed
once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from polyseq.backends import RunOptions
from polyseq.backends.options import DEFAULTS
from polyseq.batch.seqset import MAX_SEQ
from polyseq.context import Context
from polyseq.context_sizes import DEFAULT_N_BATCH, DEFAULT_N_UBATCH, check_asked
from polyseq.embeddings.packing import pack
from polyseq.errors import PolyseqWarning
from polyseq.graph import Pooling, Wanted
from polyseq.mode import is_encoder, mode_of
from polyseq.model import Model

Progress = Callable[[int, int], None]  # texts done, texts in all


class Runner:
    """One context, made again only where a longer text comes."""

    def __init__(
        self,
        model: Model,
        pooling: Pooling,
        *,
        n_batch: int | None = None,
        n_ubatch: int | None = None,
        n_seq_max: int = MAX_SEQ,
        backend: str = "auto",
        options: RunOptions = DEFAULTS,
    ) -> None:
        """Raises `CapabilityError` for a pooling that the model cannot give, `ContextError` and `BadSeqCount`."""
        mode_of(model, pooling)
        check_asked(n_seq_max=n_seq_max, n_batch=n_batch, n_ubatch=n_ubatch)
        self.model = model
        self.pooling: Pooling = pooling
        pooled = model.architecture.build(Wanted(logits=False, pooling=pooling)).results["pooled"]
        self.width = int(pooled.shape[1])  # of a row
        # A decoder's cells are those of one call: more than it was trained for would be of no use to any text.
        most = DEFAULT_N_BATCH if is_encoder(model) else min(DEFAULT_N_BATCH, model.architecture.hparams.n_ctx_train)
        self._n_batch = n_batch or max(most, n_ubatch or 0)
        self._n_ubatch = min(DEFAULT_N_UBATCH, self._n_batch) if n_ubatch is None else n_ubatch or self._n_batch
        self._n_seq_max = n_seq_max
        self._backend = backend
        self._options = options
        self._ctx: Context | None = None
        self._said = False

    @property
    def context(self) -> Context | None:
        """The context that computed the last texts; None before the first."""
        return self._ctx

    def rows(self, columns: Sequence[NDArray[np.int32]], progress: Progress | None = None) -> NDArray[np.float32]:
        """[n_columns, width] f32, width = n_embd or with rank the labels; columns are [n_tokens] i32, at least one."""
        ctx = self._context_for(max(map(len, columns)))
        index: dict[bytes, int] = {}
        which = [index.setdefault(column.tobytes(), len(index)) for column in columns]
        different = [columns[i] for i in np.unique(which, return_index=True)[1]]
        rows: list[NDArray[np.float32]] = []
        calls = pack([len(c) for c in different], n_batch=ctx.n_batch, n_seq_max=ctx.n_seq_max)
        for call in calls:
            rows.append(self._call(ctx, [different[i] for i in call]))
            if progress is not None:
                progress(sum(map(len, rows)) * len(columns) // len(different), len(columns))
        computed = np.concatenate(rows)
        by_text = np.empty_like(computed)
        by_text[np.concatenate(calls)] = computed
        return by_text[which]

    def _call(self, ctx: Context, columns: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        batch = ctx.batch()
        batch.extend(np.concatenate(columns), seq=np.repeat(np.arange(len(columns)), [len(c) for c in columns]))
        outputs = ctx.decode(batch)
        ctx.memory.clear()
        return outputs.all_pooled()

    def _context_for(self, longest: int) -> Context:
        """A sequence is computed at once, so that n_ubatch must hold the longest, and n_batch that; both grow, which is
        said once.
        """
        asked = {"n_ubatch": self._n_ubatch, "n_batch": self._n_batch}
        small = [f"{name} {value}" for name, value in asked.items() if value < longest]
        if self._ctx is not None and not small:
            return self._ctx
        if small and not self._said:
            note = f"{' and '.join(small)} raised to {longest}: a text is computed at once, and the longest has"
            warnings.warn(f"{note} {longest} tokens", PolyseqWarning, stacklevel=4)
            self._said = True
        self._n_ubatch, self._n_batch = max(self._n_ubatch, longest), max(self._n_batch, longest)
        encodes = is_encoder(self.model)
        self._ctx = Context(
            self.model,
            n_ctx=0 if encodes else self._n_batch,  # a decoder's cells are those of one call, taken by any text
            unified=not encodes,
            n_seq_max=self._n_seq_max,
            n_batch=self._n_batch,
            n_ubatch=self._n_ubatch,
            pooling=self.pooling,
            backend=self._backend,
            n_threads=self._options.n_threads,
            kv_type=self._options.kv_type,
        )
        return self._ctx
