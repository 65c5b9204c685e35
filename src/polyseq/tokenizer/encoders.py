"""The library's tokenizers behind a `Tokenizer`: one that leaves text as text, one that finds special pieces in it.

Enters: a vocabulary and how its pieces are found. Leaves: the pair.
"""

from __future__ import annotations

from dataclasses import dataclass

import tokenizers
from gguf.constants import TokenType

from polyseq.tokenizer.vocab import Vocab

SPECIAL = (TokenType.CONTROL, TokenType.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Encoders:
    """User-defined pieces are found in text by both, control pieces only by the second."""

    as_text: tokenizers.Tokenizer
    with_special: tokenizers.Tokenizer


def library_encoders(
    vocab: Vocab,
    merger: tokenizers.models.Model,
    normalizer: tokenizers.normalizers.Normalizer | None = None,
    pre_tokenizer: tokenizers.pre_tokenizers.PreTokenizer | None = None,
) -> Encoders:
    """Pure. The pair for a model of pieces; the pre-tokenizer is the vocabulary's own where it has one."""
    if vocab.pre is not None:
        pre_tokenizer = vocab.pre.build()
    text_only = vocab.ids_of_type(TokenType.USER_DEFINED)
    return Encoders(
        _encoder(vocab, merger, normalizer, pre_tokenizer, text_only),
        _encoder(vocab, merger, normalizer, pre_tokenizer, text_only + vocab.ids_of_type(*SPECIAL)),
    )


def _encoder(
    vocab: Vocab,
    merger: tokenizers.models.Model,
    normalizer: tokenizers.normalizers.Normalizer | None,
    pre_tokenizer: tokenizers.pre_tokenizers.PreTokenizer | None,
    found_first: list[int],
) -> tokenizers.Tokenizer:
    """Pure. The library's tokenizer that finds the pieces `found_first` in text before any merging."""
    encoder = tokenizers.Tokenizer(merger)
    if normalizer is not None:
        encoder.normalizer = normalizer
    if pre_tokenizer is not None:
        encoder.pre_tokenizer = pre_tokenizer
    encoder.add_tokens(
        [tokenizers.AddedToken(vocab.pieces[i], normalized=False) for i in found_first if vocab.pieces[i]]
    )
    return encoder
