"""`rerank`: how well each text answers a query, by a cross-encoder that reads the two together.

Enters: a query and texts. Leaves: [n_texts] scores in the caller's order, as the classifier gives them (no sigmoid).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyseq.backends import RunOptions
from polyseq.batch.seqset import MAX_SEQ
from polyseq.embeddings.refused import TextsRefused
from polyseq.embeddings.runner import Progress, Runner
from polyseq.embeddings.token_columns import TooLong, pair_columns, warn_of_truncation
from polyseq.errors import CapabilityError
from polyseq.model import Model


def rerank(
    query: str,
    texts: Sequence[str],
    *,
    model: Model | str | Path,
    too_long: TooLong = "truncate",
    n_batch: int | None = None,
    n_ubatch: int | None = None,
    n_seq_max: int = MAX_SEQ,
    backend: str = "auto",
    n_threads: int | None = None,
    kv_type: str | None = None,
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """[n_texts] f32, the score of text i; higher answers better.

    Only the text is truncated, never the query. Raises `CapabilityError` for a model without a head of one label,
    `TokenizerError` for a query that is too long, `TextsRefused` after all other texts were scored.
    """
    loaded = model if isinstance(model, Model) else Model.load(model)
    runner = Runner(
        loaded,
        "rank",
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_seq_max=n_seq_max,
        backend=backend,
        options=RunOptions(n_threads, kv_type),
    )
    if runner.width != 1:
        raise CapabilityError(f"{loaded.name} gives {runner.width} labels for a pair; a reranker gives one score")
    found = pair_columns(loaded, query, texts, too_long)
    at = [i for i, column in enumerate(found.columns) if column is not None]
    columns = [column for column in found.columns if column is not None]
    scores = np.full(len(found.columns), np.nan, np.float32)
    if columns:
        scores[at] = runner.rows(columns, progress)[:, 0]
    warn_of_truncation(found, loaded.architecture.hparams.n_ctx_train)
    if found.refused:
        raise TextsRefused(found.refused, scores)
    return scores
