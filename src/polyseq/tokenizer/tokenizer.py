"""Text to token ids and back.

Enters: text, or ids. Leaves: [n_tokens] i32 ids, or text. The merging is done by the `tokenizers` library; what is
special, what stands for which bytes and what starts or ends a text comes from the file's `Vocab`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import TokenizerError
from polyseq.tokenizer.bytelevel import bytelevel_bytes, bytelevel_model, missing_bytes
from polyseq.tokenizer.encoders import SPECIAL, Encoders, library_encoders
from polyseq.tokenizer.hf_json import HF_JSON, hf_json
from polyseq.tokenizer.piece_bytes import PieceBytes
from polyseq.tokenizer.sentencepiece import sentencepiece_bytes, sentencepiece_model, sentencepiece_normalizer
from polyseq.tokenizer.stream import TextStream
from polyseq.tokenizer.vocab import MODEL, Vocab
from polyseq.tokenizer.wordpiece import wordpiece_bytes, wordpiece_encoders


class Tokenizer:
    """A vocabulary ready for use. Nothing changes it; it may be used from several threads."""

    def __init__(self, vocab: Vocab, encoders: Encoders, *, piece_bytes: PieceBytes, missing: bytes = b"") -> None:
        self._vocab = vocab
        self._bytes = piece_bytes
        self._missing = re.compile(b"[" + re.escape(missing) + b"]") if missing else None
        self._is_special = np.isin(vocab.types, SPECIAL)  # [n_vocab] bool
        self._encoders = encoders

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> Self:
        """Pure. The tokenizer that GGUF metadata describes, or the `tokenizer.json` they hold whole.

        Raises InvalidModelFile for metadata that contradicts itself, UnsupportedModel for a vocabulary or
        pre-tokenizer that is not known.
        """
        if HF_JSON in metadata and MODEL not in metadata:
            vocab, encoders = hf_json(metadata)
            return cls(vocab, encoders, piece_bytes=wordpiece_bytes(vocab))
        vocab = Vocab.from_metadata(metadata)
        if vocab.model == "gpt2":
            merger = bytelevel_model(vocab, metadata)
            encoders = library_encoders(vocab, merger)
            return cls(vocab, encoders, piece_bytes=bytelevel_bytes(vocab), missing=missing_bytes(merger))
        if vocab.model == "bert":
            return cls(vocab, wordpiece_encoders(vocab), piece_bytes=wordpiece_bytes(vocab))
        encoders = library_encoders(vocab, sentencepiece_model(vocab), sentencepiece_normalizer(vocab))
        return cls(vocab, encoders, piece_bytes=sentencepiece_bytes(vocab))

    @property
    def n_vocab(self) -> int:
        """Number of ids."""
        return len(self._vocab.pieces)

    @property
    def bos(self) -> int | None:
        """The id that starts a text."""
        return self._vocab.bos

    @property
    def eos(self) -> int | None:
        """The id that ends a text."""
        return self._vocab.eos

    @property
    def eot(self) -> int | None:
        """The id that ends a turn of a chat."""
        return self._vocab.eot

    @property
    def stop_ids(self) -> frozenset[int]:
        """All ids after which generation ends."""
        return self._vocab.stop_ids

    @property
    def add_bos(self) -> bool:
        """Whether `encode` puts `bos` in front with `add_special`."""
        return self._vocab.add_bos

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> NDArray[np.int32]:
        """Pure. The ids of `text`: [n_tokens] i32.

        `add_special` adds bos and eos where the file says so (leave it off for text from a chat template, which has
        them in it). Without `parse_special`, text that looks like a control piece stays text.
        Raises TokenizerError for text that is no valid Unicode or that the vocabulary cannot write.
        """
        self._check(text)
        encoder = self._encoders.with_special if parse_special else self._encoders.as_text
        ids: list[int] = encoder.encode(text, add_special_tokens=False).ids
        if add_special and self._vocab.add_bos and self.bos is not None:
            ids = [self.bos, *ids]
        if add_special and self._vocab.add_eos and self.eos is not None:
            ids = [*ids, self.eos]
        return np.array(ids, np.int32)

    def decode(
        self, ids: Sequence[int] | NDArray[np.integer], *, skip_special: bool = True, at_start: bool = True
    ) -> str:
        """Pure. The text of `ids`; bytes that are no UTF-8 become U+FFFD.

        `skip_special` leaves out control pieces. `at_start` says that the ids begin a text, from which the blank that
        `encode` put in front of a SentencePiece text is taken away; leave it off for text that goes on.
        Raises TokenizerError that names the id, where it stands and the limit.
        """
        array = np.asarray(ids)
        if array.size == 0:
            return ""
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise TokenizerError(f"ids must be integers in one dimension, not {array.dtype} of shape {array.shape}")
        bad = np.flatnonzero((array < 0) | (array >= self.n_vocab))
        if len(bad):
            raise TokenizerError(f"token id {array[bad[0]]} at {bad[0]} is outside [0, {self.n_vocab})")
        if skip_special:
            array = array[~self._is_special[array]]
        text = b"".join(map(self._bytes.__getitem__, array.tolist())).decode("utf-8", "replace")
        return text.removeprefix(" ") if at_start and self._vocab.add_space_prefix else text

    def stream(self, *, skip_special: bool = True, at_start: bool = True) -> TextStream:
        """Pure. A stream that gives what `decode` with the same options gives, token by token."""

        def bytes_of(token: int) -> bytes:
            self._check_id(token)
            return b"" if skip_special and self._is_special[token] else self._bytes[token]

        return TextStream(bytes_of, strip_blank=at_start and self._vocab.add_space_prefix)

    def piece(self, token: int) -> str:
        """Pure. The text one id stands for, special pieces included. Raises TokenizerError for a bad id."""
        self._check_id(token)
        return self._bytes[token].decode("utf-8", "replace")

    def is_special(self, token: int) -> bool:
        """Pure. Whether an id is a control or unknown piece. Raises TokenizerError for a bad id."""
        self._check_id(token)
        return bool(self._is_special[token])

    def _check_id(self, token: int) -> None:
        if not 0 <= token < self.n_vocab:
            raise TokenizerError(f"token id {token} is outside [0, {self.n_vocab})")

    def _check(self, text: str) -> None:
        if not isinstance(text, str):
            raise TokenizerError(f"text must be a str, not {type(text).__name__}")
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(f"the text has a lone surrogate {text[error.start]!r} at {error.start}") from error
        found = None if self._missing is None else self._missing.search(data)
        if found is not None:
            raise TokenizerError(f"the vocabulary has no piece for byte 0x{found[0].hex()} at byte {found.start()}")
