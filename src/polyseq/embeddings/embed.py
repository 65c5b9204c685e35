"""`embed`: a row for every text.

Enters: texts in any number and of any length. Leaves: [n_texts, n_embd], row i for text i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyseq.backends import RunOptions
from polyseq.batch.seqset import MAX_SEQ
from polyseq.embeddings.refused import Refused, TextsRefused
from polyseq.embeddings.runner import Progress, Runner
from polyseq.embeddings.token_columns import TooLong, text_columns, warn_of_truncation
from polyseq.errors import CapabilityError
from polyseq.graph import Pooling
from polyseq.mode import file_pooling, is_encoder
from polyseq.model import Model


@dataclass(frozen=True, slots=True)
class Embedded:
    """What became of some texts."""

    rows: NDArray[np.float32]  # [n_texts, n_embd] f32, NaN for a text that was refused
    refused: tuple[Refused, ...]
    truncated: tuple[int, ...]  # texts that were shortened to what the model takes
    n_tokens: int  # of all texts, as computed


class Embedder:
    """A model ready to embed again and again.

    pooling: how a text becomes one row; left out, what the file says, else mean for encoders. normalize: rows of
    length 1. n_batch and n_seq_max bound one call, n_ubatch what is computed at once; a longer text raises it.
    `backend`, `n_threads` and `kv_type` as in `Context`.
    Raises `CapabilityError` for what the model cannot give.
    """

    def __init__(
        self,
        model: Model,
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
        n_batch: int | None = None,
        n_ubatch: int | None = None,
        n_seq_max: int = MAX_SEQ,
        backend: str = "auto",
        n_threads: int | None = None,
        kv_type: str | None = None,
    ) -> None:
        self.model = model
        self.pooling: Pooling = _pooling(model, pooling)
        self.normalize = normalize
        self.runner = Runner(
            model,
            self.pooling,
            n_batch=n_batch,
            n_ubatch=n_ubatch,
            n_seq_max=n_seq_max,
            backend=backend,
            options=RunOptions(n_threads, kv_type),
        )

    def run(
        self, texts: Sequence[str], *, too_long: TooLong = "truncate", progress: Progress | None = None
    ) -> Embedded:
        """Every text that can be, whatever the others are; progress(texts done, texts in all).

        An empty text is what the model puts around a text, and is refused where that is nothing.
        """
        found = text_columns(self.model, texts, too_long)
        at = [i for i, column in enumerate(found.columns) if column is not None]
        columns = [column for column in found.columns if column is not None]
        rows = np.full((len(found.columns), self.runner.width), np.nan, np.float32)
        if columns:
            rows[at] = self.runner.rows(columns, progress)
        if self.normalize:
            rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
        n_tokens = sum(map(len, columns))
        warn_of_truncation(found, self.model.architecture.hparams.n_ctx_train)
        return Embedded(rows, tuple(found.refused), tuple(found.truncated), n_tokens)


def embed(
    texts: Sequence[str],
    *,
    model: Model | str | Path,
    pooling: Pooling | None = None,
    normalize: bool = True,
    too_long: TooLong = "truncate",
    n_batch: int | None = None,
    n_ubatch: int | None = None,
    n_seq_max: int = MAX_SEQ,
    backend: str = "auto",
    n_threads: int | None = None,
    kv_type: str | None = None,
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """[n_texts, n_embd] f32, row i for text i; see `Embedder`.

    A text above the model's maximum is truncated, with a warning that names it, or with too_long="refuse" refused.
    Raises `TextsRefused` after all others were computed; they are in its `rows`.
    """
    loaded = model if isinstance(model, Model) else Model.load(model)
    embedder = Embedder(
        loaded,
        pooling=pooling,
        normalize=normalize,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_seq_max=n_seq_max,
        backend=backend,
        n_threads=n_threads,
        kv_type=kv_type,
    )
    done = embedder.run(texts, too_long=too_long, progress=progress)
    if done.refused:
        raise TextsRefused(done.refused, done.rows)
    return done.rows


def _pooling(model: Model, asked: Pooling | None) -> Pooling:
    chosen = asked or file_pooling(model) or ("mean" if is_encoder(model) else None)
    if chosen == "rank":
        raise CapabilityError(f"{model.name} scores pairs of texts: use rerank, or choose a pooling to embed by")
    if chosen is None or chosen == "none":
        able = ", ".join(sorted(model.architecture.poolings - {"rank"}))
        raise CapabilityError(f"{model.name} does not say how a text becomes one row; choose a pooling: {able}")
    return chosen
