"""Texts as token columns that the model can take, or the reason why not, text by text.

Enters: texts. Leaves: a column for each text that can be computed. One bad text costs none of the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polyseq.embeddings.refused import Refused
from polyseq.errors import BadColumn, PolyseqWarning, TokenizerError
from polyseq.model import Model

TooLong = Literal["truncate", "refuse"]
Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TokenColumns:
    """columns[i] [n_tokens] i32, None for a text that was refused; `truncated` lists the texts that were shortened."""

    columns: list[Tokens | None]
    refused: list[Refused]
    truncated: list[int]


def text_columns(model: Model, texts: Sequence[str], too_long: TooLong) -> TokenColumns:
    """Pure. Each text with what the model puts around a text ([CLS] and [SEP]); its end stays where it is shortened.

    Text that looks like a special piece stays text. Raises BadColumn for what is no sequence of texts.
    """
    n_max, tokenizer = model.architecture.hparams.n_ctx_train, model.tokenizer

    def column(text: str) -> Tokens:
        return tokenizer.encode(text, parse_special=False)

    def shortened(tokens: Tokens) -> Tokens:
        n_end = len(tokenizer.encode("")) - (tokenizer.add_bos and tokenizer.bos is not None)
        return np.concatenate((tokens[: n_max - n_end], tokens[len(tokens) - n_end :]))

    return _columns(texts, n_max, too_long, column, shortened)


def pair_columns(model: Model, query: str, texts: Sequence[str], too_long: TooLong) -> TokenColumns:
    """Pure. [CLS] query [SEP] text [SEP] for each text; only the text is shortened.

    Raises BadColumn for what is no sequence of texts, TokenizerError for a query that leaves no room for a text.
    """
    n_max, tokenizer = model.architecture.hparams.n_ctx_train, model.tokenizer
    if tokenizer.bos is None or tokenizer.eos is None:
        raise TokenizerError(f"{model.name} has no pieces that stand around and between two texts")
    asked = tokenizer.encode(query, add_special=False, parse_special=False)
    if len(asked) + 4 > n_max:
        raise TokenizerError(
            f"the query has {len(asked)} tokens; with 3 around it and a text it must fit {n_max}: at most {n_max - 4}"
        )
    before, after = np.array([tokenizer.bos, *asked, tokenizer.eos], np.int32), np.array([tokenizer.eos], np.int32)

    def column(text: str) -> Tokens:
        return np.concatenate((before, tokenizer.encode(text, add_special=False, parse_special=False), after))

    def shortened(tokens: Tokens) -> Tokens:
        return np.concatenate((tokens[: n_max - 1], after))

    return _columns(texts, n_max, too_long, column, shortened)


def warn_of_truncation(columns: TokenColumns, n_max: int) -> None:
    """Warns once, naming the texts."""
    if columns.truncated:
        some = ", ".join(map(str, columns.truncated[:8])) + (", ..." if len(columns.truncated) > 8 else "")
        warnings.warn(
            f"{len(columns.truncated)} texts were truncated to the model's {n_max} tokens: {some}",
            PolyseqWarning,
            stacklevel=3,
        )


def _columns(
    texts: Sequence[str],
    n_max: int,
    too_long: TooLong,
    column: Callable[[str], Tokens],
    shortened: Callable[[Tokens], Tokens],
) -> TokenColumns:
    if isinstance(texts, str | bytes):
        raise BadColumn("texts is one text; give a list of texts")
    if too_long not in ("truncate", "refuse"):
        raise BadColumn(f"too_long is {too_long!r}, it must be 'truncate' or 'refuse'")
    found = TokenColumns([], [], [])
    for i, text in enumerate(texts):
        try:
            tokens = column(text)
            if len(tokens) == 0:
                raise TokenizerError("it has no tokens, and the model puts none around a text")
            if len(tokens) > n_max and too_long == "refuse":
                raise TokenizerError(f"it has {len(tokens)} tokens, the model takes {n_max}; shorten or truncate it")
        except TokenizerError as error:
            found.columns.append(None)
            found.refused.append(Refused(i, str(error)))
            continue
        if len(tokens) > n_max:
            tokens = shortened(tokens)
            found.truncated.append(i)
        found.columns.append(tokens)
    return found
