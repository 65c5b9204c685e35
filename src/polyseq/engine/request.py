"""One prompt on its way to an answer: what was asked, and how far it is.

Enters: a prompt, as submitted. Changes step by step in the engine's hands: waiting (no sequence), its prompt
going into memory (`n_past < n_prompt`), then decoding (`last` is fed, the next is drawn).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyseq.errors import BadColumn
from polyseq.sampling import Sampler
from polyseq.tokenizer import TextStream


@dataclass(slots=True, eq=False)
class Request:
    """The one mutable value of the engine; its identity is its `i_prompt`."""

    i_prompt: int
    tokens: NDArray[np.int32]  # [n_prompt]
    max_tokens: int | None  # None = until a stop token or the context's end
    sampler: Sampler
    stream: TextStream
    shares: bool  # starts with the engine's shared prefix and goes on after it
    seq: int = -1  # the sequence it runs in; -1 = waiting
    n_past: int = 0  # its tokens in memory
    last: int = -1  # drawn, not in memory yet
    n_gen: int = 0

    @property
    def n_prompt(self) -> int:
        return len(self.tokens)

    @property
    def decoding(self) -> bool:
        """Whether the whole prompt is in memory, so that one row is fed per step."""
        return self.n_past >= self.n_prompt


def token_column(tokens: ArrayLike) -> NDArray[np.int32]:
    """Pure. [n_prompt] i32 from any column of ints. Raises BadColumn for text, nested lists and the like.

    An id that i32 cannot hold becomes -1, which the vocabulary's own check then names.
    """
    column = np.asarray(tokens)
    if column.ndim != 1 or (column.size and column.dtype.kind not in "iu"):
        raise BadColumn(
            f"a prompt is a column of token ids, not {column.dtype} of shape {column.shape}; encode text first"
        )
    return np.where(column == column.astype(np.int32), column, -1).astype(np.int32)


def why_not(tokens: NDArray[np.int32], *, limit: int, n_vocab: int) -> str:
    """Pure. Why a prompt [n_prompt] can never run where a sequence holds `limit` tokens; "" if it can."""
    if not len(tokens):
        return "the prompt is empty; at least one token is needed"
    if len(tokens) > limit:
        return (
            f"the prompt has {len(tokens)} tokens, a sequence of this context holds {limit} (n_ctx_seq); "
            f"{len(tokens) - limit} too many"
        )
    if tokens.min() < 0 or tokens.max() >= n_vocab:
        bad = int(np.flatnonzero((tokens < 0) | (tokens >= n_vocab))[0])
        return f"token {tokens[bad]} at {bad} of the prompt is outside the vocabulary [0, {n_vocab})"
    return ""
