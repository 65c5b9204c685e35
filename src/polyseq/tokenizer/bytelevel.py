"""Byte-level BPE vocabularies (`tokenizer.ggml.model` = gpt2).

Enters: a `Vocab` and the file's merges. Leaves: the BPE model and the bytes of every piece. Pieces are written in
GPT-2's alphabet, in which each of the 256 bytes is one visible character (Radford et al. 2019).
"""

from __future__ import annotations

from gguf.constants import TokenType
from tokenizers import models

from polyseq.errors import InvalidModelFile
from polyseq.tokenizer import fields
from polyseq.tokenizer.fields import Metadata
from polyseq.tokenizer.piece_bytes import PieceBytes
from polyseq.tokenizer.vocab import Vocab

_MERGES = "tokenizer.ggml.merges"
_NO_LATIN1 = 0xFFFF  # stands for "not in the alphabet": it makes the latin-1 encoding below fail


def _alphabet() -> dict[int, int]:
    """Pure. From the code point that stands for a byte to that byte."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: byte for byte in visible} | {256 + i: byte for i, byte in enumerate(hidden)}


_TO_BYTE = dict.fromkeys(range(256), _NO_LATIN1) | _alphabet()
_RAW = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)


def bytelevel_model(vocab: Vocab, metadata: Metadata) -> models.BPE:
    """Pure. The BPE model. Raises InvalidModelFile for merges of pieces that are not in the vocabulary."""
    ids = dict(zip(vocab.pieces, range(len(vocab.pieces)), strict=True))
    lines = fields.texts(metadata, _MERGES)
    merges = _merges(lines)
    ignore_merges = vocab.pre is not None and vocab.pre.ignore_merges
    try:
        return models.BPE(ids, merges, ignore_merges=ignore_merges)
    except Exception:  # the library raises bare Exception, and names no line
        for i, (left, right) in enumerate(merges):
            for piece in (left, right, left + right):
                if piece not in ids:
                    raise InvalidModelFile(
                        f"{_MERGES}[{i}] is {lines[i]!r}, but {piece!r} is not in the vocabulary"
                    ) from None
        raise


def _merges(lines: list[str]) -> list[tuple[str, str]]:
    """Pure. The two pieces of each line."""
    # The first character belongs to the left piece even if it is a blank.
    cuts = [line.find(" ", 1) for line in lines]
    for i, (line, cut) in enumerate(zip(lines, cuts, strict=True)):
        if not 0 < cut < len(line) - 1:
            raise InvalidModelFile(f"{_MERGES}[{i}] is {line!r}, it must be two pieces with a blank between")
    return [(line[:cut], line[cut + 1 :]) for line, cut in zip(lines, cuts, strict=True)]


def bytelevel_bytes(vocab: Vocab) -> PieceBytes:
    """Pure. The bytes each piece stands for; special pieces stand for their own text."""
    raw = frozenset(vocab.ids_of_type(*_RAW))

    def encoded(token: int) -> bytes:
        piece = vocab.pieces[token]
        if token not in raw:
            try:
                return piece.translate(_TO_BYTE).encode("latin-1")
            except UnicodeEncodeError:
                pass  # a piece written outside the alphabet stands for its own text
        return piece.encode()

    return PieceBytes(encoded)


def missing_bytes(model: models.BPE) -> bytes:
    """Pure. The bytes that no piece stands for alone: text with one of them cannot be encoded."""
    return bytes(sorted(byte for code, byte in _alphabet().items() if model.token_to_id(chr(code)) is None))
