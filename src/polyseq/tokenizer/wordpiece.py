"""WordPiece vocabularies (`tokenizer.ggml.model` = bert; BERT and its kin, arXiv:1810.04805).

Enters: a `Vocab` as GGUF stores it: pieces that start a word carry U+2581, the others go on with a word. Leaves: the
library's WordPiece, which marks them the other way round, and the bytes of every piece.
"""

from __future__ import annotations

import unicodedata

import tokenizers
from gguf.constants import TokenType

from polyseq.errors import InvalidModelFile
from polyseq.tokenizer.encoders import Encoders, library_encoders
from polyseq.tokenizer.piece_bytes import PieceBytes
from polyseq.tokenizer.vocab import Vocab

BLANK = "\u2581"
CONTINUES = "##"
MAX_WORD_CHARS = 100  # a longer word becomes one unknown piece, as in the original

_RAW = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)


def wordpiece_encoders(vocab: Vocab) -> Encoders:
    """Pure. The encoders; raises InvalidModelFile for a vocabulary without an unknown piece.

    GGUF does not say whether capitals and accents are kept: a vocabulary that has pieces with them keeps them.
    """
    if vocab.unk is None:
        raise InvalidModelFile("the vocabulary has no unknown piece ([UNK]), which words without pieces become")
    pieces = library_pieces(vocab)
    raw = set(_raw_ids(vocab))
    text = "".join(piece for i, piece in enumerate(pieces) if i not in raw)
    decomposed = unicodedata.normalize("NFD", text)
    keeps_accents = any(unicodedata.category(c) == "Mn" for c in set(decomposed))
    model = tokenizers.models.WordPiece(
        {piece: i for i, piece in enumerate(pieces)},
        unk_token=pieces[vocab.unk],
        max_input_chars_per_word=MAX_WORD_CHARS,
    )
    normalizer = tokenizers.normalizers.BertNormalizer(lowercase=text == text.lower(), strip_accents=not keeps_accents)
    return library_encoders(vocab, model, normalizer, tokenizers.pre_tokenizers.BertPreTokenizer())


def library_pieces(vocab: Vocab) -> list[str]:
    """Pure. [n_vocab] the pieces in the library's spelling: `word`, `##ing`, `[CLS]`."""
    raw = set(_raw_ids(vocab))
    return [
        piece if i in raw else piece[1:] if piece.startswith(BLANK) else CONTINUES + piece
        for i, piece in enumerate(vocab.pieces)
    ]


def wordpiece_bytes(vocab: Vocab) -> PieceBytes:
    """Pure. The bytes each piece stands for; a piece that starts a word brings a blank."""
    raw = frozenset(_raw_ids(vocab))

    def encoded(token: int) -> bytes:
        piece = vocab.pieces[token]
        return (piece if token in raw or not piece.startswith(BLANK) else " " + piece[1:]).encode()

    return PieceBytes(encoded)


def _raw_ids(vocab: Vocab) -> list[int]:
    """Pure. Ids of pieces that stand for themselves; older files do not type them, but write them in brackets."""
    bracketed = [i for i, piece in enumerate(vocab.pieces) if piece[:1] == "[" and piece[-1:] == "]" and len(piece) > 2]
    return vocab.ids_of_type(*_RAW) + bracketed
