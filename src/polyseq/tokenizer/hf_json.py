"""A whole `tokenizer.json` in the metadata (GGUF's key `tokenizer.huggingface.json`; Hugging Face folders bring it).

Enters: metadata. Leaves: the library's own tokenizer with padding and truncation off, and the `Vocab` it amounts to.
Only WordPiece is read this way; GGUF files describe the other kinds.
"""

from __future__ import annotations

import json

import numpy as np
import tokenizers
from gguf.constants import TokenType

from polyseq.errors import InvalidModelFile, UnsupportedModel
from polyseq.tokenizer import fields
from polyseq.tokenizer.encoders import Encoders
from polyseq.tokenizer.fields import Metadata
from polyseq.tokenizer.vocab import Vocab
from polyseq.tokenizer.wordpiece import BLANK, CONTINUES

HF_JSON = "tokenizer.huggingface.json"
MAX_VOCAB = 1 << 22


def hf_json(metadata: Metadata) -> tuple[Vocab, Encoders]:
    """Pure. Vocabulary and encoders. Raises InvalidModelFile, or UnsupportedModel for what is no WordPiece."""
    text = fields.text(metadata, HF_JSON)
    assert text is not None
    encoders = Encoders(_encoder(text, find_special=False), _encoder(text, find_special=True))
    kind = type(encoders.as_text.model).__name__
    if kind != "WordPiece":
        raise UnsupportedModel(f"{HF_JSON} holds a {kind} tokenizer; supported: WordPiece, others from GGUF files")
    special = {i for i, token in encoders.as_text.get_added_tokens_decoder().items() if token.special}
    return _vocab(metadata, encoders.as_text.get_vocab(with_added_tokens=True), special), encoders


def _encoder(text: str, *, find_special: bool) -> tokenizers.Tokenizer:
    try:
        json.loads(text)  # the library panics on some broken input
        encoder = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise InvalidModelFile(f"{HF_JSON} is no tokenizer: {error}") from error
    encoder.no_padding()
    encoder.no_truncation()
    encoder.encode_special_tokens = not find_special
    return encoder


def _vocab(metadata: Metadata, ids: dict[str, int], special: set[int]) -> Vocab:
    n_vocab = max(ids.values(), default=-1) + 1
    if not 0 < n_vocab <= MAX_VOCAB:
        raise InvalidModelFile(
            f"{HF_JSON} has {len(ids)} pieces with ids up to {n_vocab - 1}; the limit is {MAX_VOCAB}"
        )
    types = np.full(n_vocab, TokenType.NORMAL, np.int32)
    types[sorted(special)] = TokenType.CONTROL
    pieces = [""] * n_vocab  # an id without a piece stands for nothing
    for piece, i in ids.items():
        start = piece.removeprefix(CONTINUES) if piece.startswith(CONTINUES) else BLANK + piece
        pieces[i] = piece if i in special else start
    named = {
        name: fields.token_id(metadata, f"tokenizer.ggml.{key}_token_id", n_vocab)
        for name, key in (("cls", "bos"), ("sep", "seperator"), ("unk", "unknown"))
    }
    cls, sep = named["cls"], named["sep"]
    return Vocab(
        model="bert",
        pieces=pieces,
        types=types,
        scores=None,
        pre=None,
        bos=cls,
        eos=sep,
        eot=None,
        unk=named["unk"],
        stop_ids=frozenset() if sep is None else frozenset({sep}),
        add_bos=cls is not None,
        add_eos=sep is not None,
        add_space_prefix=True,
    )
