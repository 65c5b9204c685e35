"""SentencePiece vocabularies with scores (`tokenizer.ggml.model` = llama; Llama 2, Mistral, Gemma).

Enters: a `Vocab` with scores. Leaves: a BPE model whose merges are derived from the scores, the normaliser that
goes with it, and the bytes of every piece. A pair may merge when the joined text is a piece; the better its score,
the earlier (Kudo & Richardson 2018). Blanks are written U+2581; characters without a piece fall back to bytes.
"""

from __future__ import annotations

import re

import numpy as np
from gguf.constants import TokenType
from tokenizers import models, normalizers

from polyseq.errors import InvalidModelFile
from polyseq.tokenizer.piece_bytes import PieceBytes
from polyseq.tokenizer.splits import splits
from polyseq.tokenizer.vocab import Vocab

BLANK = "\u2581"
MAX_PIECE_CHARS = 512  # of pieces that merge; published vocabularies stay below 100
MAX_VOCAB_CHARS = 1 << 23  # of all pieces that merge together, as each character is a place to cut

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_UNMERGED = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.BYTE)
_RAW = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)


def sentencepiece_model(vocab: Vocab) -> models.BPE:
    """Pure. The BPE model with byte fallback.

    Raises InvalidModelFile when some text could be encoded in no way at all: neither 256 byte pieces nor an unknown
    piece.
    """
    ids = dict(zip(vocab.pieces, range(len(vocab.pieces)), strict=True))
    has_bytes = all(f"<0x{byte:02X}>" in ids for byte in range(256))
    if not has_bytes and vocab.unk is None:
        raise InvalidModelFile("the vocabulary has neither all 256 byte pieces nor tokenizer.ggml.unknown_token_id")
    unk = None if vocab.unk is None else vocab.pieces[vocab.unk]
    return models.BPE(ids, _merges(vocab), unk_token=unk, fuse_unk=True, byte_fallback=has_bytes)


def sentencepiece_normalizer(vocab: Vocab) -> normalizers.Normalizer:
    """Pure. Blanks become U+2581; one goes in front of each stretch of text where the file says so."""
    replace = normalizers.Replace(" ", BLANK)
    if not vocab.add_space_prefix:
        return replace
    return normalizers.Sequence([normalizers.Prepend(BLANK), replace])


def _merges(vocab: Vocab) -> list[tuple[str, str]]:
    """Pure. All ways to join two pieces into one, best score first; among equals, by the ids of the two."""
    if vocab.scores is None:
        raise InvalidModelFile("tokenizer.ggml.scores is missing; a 'llama' vocabulary needs them")
    unmerged = set(vocab.ids_of_type(*_UNMERGED))
    by_piece = {piece: i for i, piece in enumerate(vocab.pieces) if i not in unmerged}
    _check_lengths(by_piece)
    whole, left, right = splits(list(by_piece))
    pieces, ids = np.array(list(by_piece), np.object_), np.array(list(by_piece.values()), np.int64)
    order = np.lexsort((ids[left] << 32 | ids[right], -vocab.scores[ids[whole]]))
    return list(zip(pieces[left[order]], pieces[right[order]], strict=True))


def _check_lengths(ids: dict[str, int]) -> None:
    n_chars = sum(map(len, ids))
    if n_chars > MAX_VOCAB_CHARS:
        raise InvalidModelFile(f"the pieces hold {n_chars} characters together, the limit is {MAX_VOCAB_CHARS}")
    longest = max(ids, key=len, default="")
    if len(longest) > MAX_PIECE_CHARS:
        raise InvalidModelFile(
            f"tokenizer.ggml.tokens[{ids[longest]}] has {len(longest)} characters, the limit is {MAX_PIECE_CHARS}"
        )


def sentencepiece_bytes(vocab: Vocab) -> PieceBytes:
    """Pure. The bytes each piece stands for; special pieces stand for their own text.

    Raises InvalidModelFile for a byte piece that names no byte.
    """
    bytes_of = {i: _byte(i, vocab.pieces[i]) for i in vocab.ids_of_type(TokenType.BYTE)}
    raw = frozenset(vocab.ids_of_type(*_RAW))

    def encoded(token: int) -> bytes:
        if token in bytes_of:
            return bytes_of[token]
        piece = vocab.pieces[token]
        return (piece if token in raw else piece.replace(BLANK, " ")).encode()

    return PieceBytes(encoded)


def _byte(token: int, piece: str) -> bytes:
    match = _BYTE_PIECE.fullmatch(piece)
    if match is None:
        raise InvalidModelFile(f"tokenizer.ggml.tokens[{token}] is the byte piece {piece!r}, not <0xNN>")
    return bytes([int(match[1], 16)])
