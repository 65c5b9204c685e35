"""The vocabulary a model file carries, checked before anything is built from it.

Enters: GGUF metadata (`tokenizer.ggml.*`). Leaves: `Vocab`: pieces with their types and scores, merges, special
ids and flags. What the pieces mean is up to the two kinds, `bytelevel` and `sentencepiece`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from gguf.constants import TokenType
from numpy.typing import NDArray

from polyseq.errors import InvalidModelFile, UnsupportedModel
from polyseq.tokenizer import fields
from polyseq.tokenizer.fields import Metadata
from polyseq.tokenizer.pretokenizers import Pretokenization, pretokenization

_KEY = "tokenizer.ggml."
MODEL = _KEY + "model"
_MODELS = ("gpt2", "llama", "bert")

# Pieces that end a turn in well-known chat formats; files often name only one of them.
_TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|return|>",
    "<EOT>",
)
_TEXT_ENDS = ("<|endoftext|>", "<|end_of_text|>")


@dataclass(frozen=True, slots=True)
class Vocab:
    """Pieces and rules of one vocabulary."""

    model: str  # "gpt2" (byte-level BPE), "llama" (SentencePiece) or "bert" (WordPiece)
    pieces: list[str]  # [n_vocab], as stored
    types: NDArray[np.int32]  # [n_vocab] gguf.TokenType
    scores: NDArray[np.float32] | None  # [n_vocab]; SentencePiece only
    pre: Pretokenization | None  # byte-level BPE only
    bos: int | None
    eos: int | None
    eot: int | None
    unk: int | None
    stop_ids: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> Self:
        """Pure. Read and check `tokenizer.ggml.*`.

        Raises InvalidModelFile for metadata that contradicts itself, UnsupportedModel for a kind of vocabulary or a
        pre-tokenizer that is not known.
        """
        model = fields.text(metadata, MODEL)
        if model is None:
            raise InvalidModelFile(f"{MODEL} is missing: the file carries no tokenizer")
        if model not in _MODELS:
            raise UnsupportedModel(f"the tokenizer model {model!r} is not supported; supported: {', '.join(_MODELS)}")
        pieces = fields.texts(metadata, _KEY + "tokens")
        if not pieces:
            raise InvalidModelFile(f"{_KEY}tokens is empty")
        n_vocab = len(pieces)
        types = _types(metadata, n_vocab)
        pre = pretokenization(fields.text(metadata, _KEY + "pre")) if model == "gpt2" else None
        ids = {
            name: fields.token_id(metadata, f"{_KEY}{name}_token_id", n_vocab)
            for name in ("bos", "eos", "eot", "eom", "unknown")
        }
        if model == "bert":
            ids |= _bert_ids(metadata, pieces, ids)
        turn_ends, text_ends = _ends(pieces, types)
        eot = ids["eot"] if ids["eot"] is not None else next(iter(turn_ends), None)
        stops = {ids["eos"], eot, ids["eom"], *turn_ends, *text_ends} - {None}
        return cls(
            model=model,
            pieces=pieces,
            types=types,
            scores=_scores(metadata, n_vocab) if model == "llama" else None,
            pre=pre,
            bos=ids["bos"],
            eos=ids["eos"],
            eot=eot,
            unk=ids["unknown"],
            stop_ids=frozenset(stop for stop in stops if stop is not None),
            add_bos=fields.flag(metadata, _KEY + "add_bos_token", pre is None or pre.add_bos),
            add_eos=fields.flag(metadata, _KEY + "add_eos_token", model == "bert"),
            add_space_prefix=pre is None and fields.flag(metadata, _KEY + "add_space_prefix", True),
        )

    def ids_of_type(self, *types: TokenType) -> list[int]:
        """Pure. Ids of all pieces of these types, ascending."""
        ids: list[int] = np.flatnonzero(np.isin(self.types, types)).tolist()
        return ids


def _bert_ids(metadata: Metadata, pieces: list[str], ids: dict[str, int | None]) -> dict[str, int | None]:
    """Pure. A text stands between [CLS] and [SEP]: files name them as bos and separator, or not at all."""
    by_piece = {pieces[i]: i for i in range(len(pieces) - 1, -1, -1)}
    sep = fields.token_id(metadata, _KEY + "seperator_token_id", len(pieces))  # spelt so in the format
    first_known = {
        "bos": (ids["bos"], fields.token_id(metadata, _KEY + "cls_token_id", len(pieces)), by_piece.get("[CLS]")),
        "eos": (sep, ids["eos"], by_piece.get("[SEP]")),
        "unknown": (ids["unknown"], by_piece.get("[UNK]")),
    }
    return {name: next((i for i in found if i is not None), None) for name, found in first_known.items()}


def _types(metadata: Metadata, n_vocab: int) -> NDArray[np.int32]:
    """Pure. [n_vocab] i32; a file without types has only normal pieces."""
    stored = fields.numbers(metadata, _KEY + "token_type", n_vocab)
    if stored is None:
        return np.full(n_vocab, TokenType.NORMAL, np.int32)
    bad = np.flatnonzero(~np.isin(stored, [*TokenType, 0]))
    if len(bad):
        raise InvalidModelFile(f"{_KEY}token_type[{bad[0]}] is {stored[bad[0]]}, known are 0 to {max(TokenType)}")
    return stored.astype(np.int32)


def _scores(metadata: Metadata, n_vocab: int) -> NDArray[np.float32]:
    """Pure. [n_vocab] f32, finite."""
    stored = fields.numbers(metadata, _KEY + "scores", n_vocab)
    if stored is None:
        raise InvalidModelFile(f"{_KEY}scores is missing; a 'llama' vocabulary needs them")
    scores = stored.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(scores))
    if len(bad):
        raise InvalidModelFile(f"{_KEY}scores[{bad[0]}] is {scores[bad[0]]}, it must be finite")
    return scores


def _ends(pieces: list[str], types: NDArray[np.int32]) -> tuple[list[int], list[int]]:
    """Pure. Ids of special pieces known to end a turn, in order of preference, and of those that end a text."""
    special = np.flatnonzero(np.isin(types, (TokenType.CONTROL, TokenType.USER_DEFINED))).tolist()
    by_piece = {pieces[i]: i for i in special}
    turn_ends = [by_piece[piece] for piece in _TURN_ENDS if piece in by_piece]
    return turn_ends, [by_piece[piece] for piece in _TEXT_ENDS if piece in by_piece]
