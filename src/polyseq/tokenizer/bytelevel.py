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
    ids = {piece: i for i, piece in enumerate(vocab.pieces)}
    ignore_merges = vocab.pre is not None and vocab.pre.ignore_merges
    return models.BPE(ids, _merges(fields.texts(metadata, _MERGES), ids), ignore_merges=ignore_merges)


def _merges(lines: list[str], ids: dict[str, int]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for i, line in enumerate(lines):
        # The first character belongs to the left piece even if it is a blank.
        cut = line.find(" ", 1)
        left, right = line[:cut], line[cut + 1 :]
        if cut < 0 or not right:
            raise InvalidModelFile(f"{_MERGES}[{i}] is {line!r}, it must be two pieces with a blank between")
        if not (left in ids and right in ids and left + right in ids):  # said at once: there are 50,000 lines and more
            missing = next(piece for piece in (left, right, left + right) if piece not in ids)
            raise InvalidModelFile(f"{_MERGES}[{i}] is {line!r}, but {missing!r} is not in the vocabulary")
        merges.append((left, right))
    return merges


def bytelevel_bytes(vocab: Vocab) -> list[bytes]:
    """Pure. [n_vocab] the bytes each piece stands for; special pieces stand for their own text."""
    raw = set(vocab.ids_of_type(*_RAW))
    return [_encoded(piece, i in raw) for i, piece in enumerate(vocab.pieces)]


def _encoded(piece: str, raw: bool) -> bytes:
    if not (raw or piece.isascii()):  # visible ASCII stands for itself, other ASCII is outside the alphabet
        try:
            return piece.translate(_TO_BYTE).encode("latin-1")
        except UnicodeEncodeError:
            pass  # a piece written outside the alphabet stands for its own text
    return piece.encode()


def missing_bytes(vocab: Vocab) -> bytes:
    """Pure. The bytes that no piece stands for alone: text with one of them cannot be encoded."""
    held = set(vocab.pieces)
    return bytes(sorted(byte for code, byte in _alphabet().items() if chr(code) not in held))
