"""Tokenizers built from vocabularies written by hand: known segmentations, round trips, and metadata that lies."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from gguf.constants import TokenType
from hypothesis import given, settings
from hypothesis import strategies as st

from polyseq.errors import InvalidModelFile, TokenizerError, UnsupportedModel
from polyseq.tokenizer import Tokenizer
from polyseq.tokenizer.pretokenizers import pretokenization
from polyseq.tokenizer.splits import splits

NORMAL, UNKNOWN, CONTROL, USER, BYTE = (
    int(kind)
    for kind in (TokenType.NORMAL, TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.BYTE)
)
KEY = "tokenizer.ggml."


def byte_alphabet() -> list[str]:
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in visible else chr(next(hidden)) for byte in range(256)]


def bytelevel(**changes: object) -> dict[str, Any]:
    """256 bytes; he, ll, hell, hello, Ġhello by merging; three control pieces and a user-defined one."""
    merged = ["he", "ll", "hell", "hello", "Ġhello"]
    special = ["<s>", "</s>", "<|im_end|>"]
    metadata: dict[str, Any] = {
        KEY + "model": "gpt2",
        KEY + "pre": "gpt-2",
        KEY + "tokens": [*byte_alphabet(), *merged, *special, "<think>"],
        KEY + "token_type": np.array([NORMAL] * 261 + [CONTROL] * 3 + [USER], np.int32),
        KEY + "merges": ["h e", "l l", "he ll", "hell o", "Ġ hello"],
        KEY + "bos_token_id": 261,
        KEY + "eos_token_id": 262,
    }
    return changed(metadata, changes)


def sentencepiece(**changes: object) -> dict[str, Any]:
    """unk, bos, eos, 256 bytes, some letters and pieces with scores, as SentencePiece writes them."""
    pieces = ["▁", "h", "e", "l", "o", "▁h", "he", "ll", "hell", "lo", "hello", "▁hello", "ell"]
    scores = [-20.0] * 5 + [-6.0, -5.0, -4.0, -3.0, -2.0, -1.0, -0.5, -9.0]
    metadata: dict[str, Any] = {
        KEY + "model": "llama",
        KEY + "tokens": ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces],
        KEY + "token_type": np.array([UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)], np.int32),
        KEY + "scores": np.array([0.0] * 259 + scores, np.float32),
        KEY + "bos_token_id": 1,
        KEY + "eos_token_id": 2,
        KEY + "unknown_token_id": 0,
    }
    return changed(metadata, changes)


def changed(metadata: dict[str, Any], changes: dict[str, object]) -> dict[str, Any]:
    metadata |= {KEY + name: value for name, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def pieces_of(tokenizer: Tokenizer, text: str, **options: bool) -> list[str]:
    return [tokenizer.piece(i) for i in tokenizer.encode(text, **options).tolist()]


# ---- byte-level BPE ------------------------------------------------------------------------------------


def test_merges_in_order() -> None:
    tokenizer = Tokenizer.from_metadata(bytelevel())
    assert tokenizer.encode("hello").dtype == np.int32
    assert pieces_of(tokenizer, "hello hello") == ["hello", " hello"]
    assert pieces_of(tokenizer, "hell help") == ["hell", " ", "he", "l", "p"]
    assert pieces_of(tokenizer, "hello  hello") == ["hello", " ", " hello"]
    assert pieces_of(tokenizer, "") == []
    assert tokenizer.decode(tokenizer.encode("hello größe \U0001f600")) == "hello größe \U0001f600"


def test_words_that_are_pieces_may_skip_merging() -> None:
    """Without the merges that lead to it, a piece is only reached by the families that ignore merges."""
    merges = ["h e", "l l"]
    assert pieces_of(Tokenizer.from_metadata(bytelevel(merges=merges)), "hello") == ["he", "ll", "o"]
    tokenizer = Tokenizer.from_metadata(bytelevel(merges=merges, pre="llama-bpe", add_bos_token=False))
    assert pieces_of(tokenizer, "hello") == ["hello"]


def test_special_pieces() -> None:
    tokenizer = Tokenizer.from_metadata(bytelevel())
    text = "<s>hello<|im_end|><think>"
    assert pieces_of(tokenizer, text) == ["<s>", "hello", "<|im_end|>", "<think>"]
    plain = pieces_of(tokenizer, text, parse_special=False)
    assert plain[:3] == ["<", "s", ">"] and "<|im_end|>" not in plain and plain[-1] == "<think>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == "hello<think>"
    assert tokenizer.decode(ids, skip_special=False) == text
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text
    assert [tokenizer.is_special(i) for i in (0, 261, 264)] == [False, True, False]


def test_longest_special_piece_wins() -> None:
    tokens = [*bytelevel()[KEY + "tokens"][:261], "<a", "<a>", "<a>>"]
    tokenizer = Tokenizer.from_metadata(
        bytelevel(tokens=tokens, token_type=np.array([NORMAL] * 261 + [CONTROL] * 3, np.int32))
    )
    assert pieces_of(tokenizer, "<a>>x<a>x<a") == ["<a>>", "x", "<a>", "x", "<a"]


def test_bos_and_eos_where_the_file_says() -> None:
    tokenizer = Tokenizer.from_metadata(bytelevel(add_bos_token=True, add_eos_token=True))
    assert tokenizer.encode("he").tolist() == [261, 256, 262]
    assert tokenizer.encode("he", add_special=False).tolist() == [256]
    assert Tokenizer.from_metadata(bytelevel()).encode("he").tolist() == [256]
    assert Tokenizer.from_metadata(bytelevel(pre="llama-bpe")).encode("he").tolist() == [261, 256]
    assert Tokenizer.from_metadata(bytelevel(add_bos_token=True, bos_token_id=None)).encode("he").tolist() == [256]


def test_ends() -> None:
    tokenizer = Tokenizer.from_metadata(bytelevel())
    assert (tokenizer.bos, tokenizer.eos, tokenizer.eot, tokenizer.n_vocab) == (261, 262, 263, 265)
    assert tokenizer.stop_ids == {262, 263}
    tokenizer = Tokenizer.from_metadata(bytelevel(eot_token_id=5, eom_token_id=6))
    assert tokenizer.eot == 5 and tokenizer.stop_ids == {5, 6, 262, 263}
    bare = bytelevel(bos_token_id=None, eos_token_id=None, token_type=None)
    tokenizer = Tokenizer.from_metadata(bare)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.eot, tokenizer.stop_ids) == (None, None, None, frozenset())


def test_bytes_without_a_piece_are_refused() -> None:
    tokens = list(bytelevel()[KEY + "tokens"])
    tokens[0x04] = "gone"
    tokenizer = Tokenizer.from_metadata(bytelevel(tokens=tokens))
    with pytest.raises(TokenizerError, match="the vocabulary has no piece for byte 0x04 at byte 2"):
        tokenizer.encode("ab\x04")


PRE = {
    "default": ["Hi", "'", "m", " ", "123", "45", "  ", " x", "=", "3"],
    "gpt-2": ["Hi", "'m", " 12345", "  ", " x", "=", "3"],
    "smollm": ["Hi", "'m", " ", "1", "2", "3", "4", "5", "  ", " x", "=", "3"],
    "llama-bpe": ["Hi", "'m", " ", "123", "45", "  ", " x", "=", "3"],
    "smaug-bpe": ["Hi", "'m", " ", "123", "45", "  ", " x", "=", "3"],
    "qwen2": ["Hi", "'m", " ", "1", "2", "3", "4", "5", "  ", " x", "=", "3"],
    "tekken": ["Hi", "'m", " ", "1", "2", "3", "4", "5", "  ", " x", "=", "3"],
    "gpt-4o": ["Hi'm", " ", "123", "45", "  ", " x", "=", "3"],
    "deepseek-coder": ["Hi", "'", "m", " ", "1", "2", "3", "4", "5", "  ", " x", "=", "3"],
    "deepseek-v3": ["Hi", "'m", " ", "123", "45", "  ", " x", "=", "3"],
}


@pytest.mark.parametrize("name", PRE)
def test_words(name: str) -> None:
    words = pretokenization(name).build().pre_tokenize_str("Hi'm 12345   x=3")
    assert [word.replace("Ġ", " ") for word, _ in words] == PRE[name]


def test_words_of_llama3_keep_line_ends_together() -> None:
    words = pretokenization("llama-bpe").build().pre_tokenize_str("a!\n\nB'LL  \n c")
    assert [word for word, _ in words] == ["a", "!ĊĊ", "B", "'LL", "ĠĠĊ", "Ġc"]


def test_what_is_not_supported_is_named() -> None:
    with pytest.raises(UnsupportedModel, match="the pre-tokenizer 'nope' is not supported; supported: default, "):
        Tokenizer.from_metadata(bytelevel(pre="nope"))
    for model in ("t5", "rwkv"):
        with pytest.raises(UnsupportedModel, match=f"the tokenizer model '{model}' is not supported"):
            Tokenizer.from_metadata(bytelevel(model=model))


# ---- SentencePiece -------------------------------------------------------------------------------------


def test_scores_decide() -> None:
    tokenizer = Tokenizer.from_metadata(sentencepiece(add_bos_token=False))
    # "lo" (-2) is joined first, which leaves no "ll" for "hell"; then "he" (-5) before " h" (-6).
    assert pieces_of(tokenizer, "hello") == [" ", "he", "l", "lo"]
    tokenizer = Tokenizer.from_metadata(sentencepiece(add_bos_token=False, add_space_prefix=False))
    assert pieces_of(tokenizer, "hell") == ["hell"]
    assert pieces_of(tokenizer, "ell") == ["ell"]
    assert pieces_of(tokenizer, "hel lo") == ["he", "l", " ", "lo"]


def test_against_a_plain_implementation() -> None:
    """The library's ranks give what joining the best-scored neighbours, leftmost first, gives."""
    metadata = sentencepiece(add_bos_token=False, add_space_prefix=False)
    tokenizer = Tokenizer.from_metadata(metadata)
    scores = dict(zip(metadata[KEY + "tokens"], metadata[KEY + "scores"].tolist(), strict=True))
    random = np.random.default_rng(3)
    for _ in range(300):
        text = "".join(random.choice(list("hello "), random.integers(1, 20)))
        symbols = list(text.replace(" ", "▁"))
        while pairs := [i for i in range(len(symbols) - 1) if symbols[i] + symbols[i + 1] in scores]:
            best = max(pairs, key=lambda i: (scores[symbols[i] + symbols[i + 1]], -i))
            symbols[best : best + 2] = [symbols[best] + symbols[best + 1]]
        assert pieces_of(tokenizer, text) == [symbol.replace("▁", " ") for symbol in symbols]


def test_bytes_for_what_has_no_piece() -> None:
    tokenizer = Tokenizer.from_metadata(sentencepiece())
    ids = tokenizer.encode("é").tolist()
    assert ids == [1, 259, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.decode(ids) == "é"


def test_the_blank_in_front() -> None:
    tokenizer = Tokenizer.from_metadata(sentencepiece())
    assert tokenizer.encode("h").tolist() == [1, 264]
    assert tokenizer.decode([1, 264]) == "h"
    assert tokenizer.decode([264], at_start=False) == " h"
    assert tokenizer.decode(tokenizer.encode(" h")) == " h"
    stream = tokenizer.stream(at_start=False)
    assert stream.push(264) + stream.push(264) == " h h"
    stream = tokenizer.stream()
    assert stream.push(1) + stream.push(264) + stream.push(264) == "h h"
    # A stretch after a control piece gets its own blank, as in llama.cpp.
    assert pieces_of(tokenizer, "h</s>h") == ["<s>", " h", "</s>", " h"]
    tokenizer = Tokenizer.from_metadata(sentencepiece(add_space_prefix=False))
    assert tokenizer.encode("h").tolist() == [1, 260]
    assert tokenizer.decode([1, 264]) == " h"


@given(st.lists(st.text("ab\u2581\U0001f600", max_size=6), unique=True, max_size=30))
def test_splits_are_all_cuts_into_two_pieces(pieces: list[str]) -> None:
    ids = {piece: i for i, piece in enumerate(pieces)}
    cuts = [(piece, piece[:n], piece[n:]) for piece in pieces for n in range(1, len(piece))]
    wanted = {tuple(ids[part] for part in cut) for cut in cuts if set(cut) <= ids.keys()}
    found = [column.tolist() for column in splits(pieces)]
    assert len(found[0]) == len(wanted)
    assert set(zip(*found, strict=True)) == wanted


def test_unknown_pieces_without_bytes() -> None:
    metadata = sentencepiece(add_bos_token=False)
    keep = [i for i in range(272) if not 3 <= i < 259]
    short = {
        "tokens": [metadata[KEY + "tokens"][i] for i in keep],
        "token_type": metadata[KEY + "token_type"][keep],
        "scores": metadata[KEY + "scores"][keep],
    }
    tokenizer = Tokenizer.from_metadata(sentencepiece(add_bos_token=False, **short))
    assert pieces_of(tokenizer, "hxh") == [" h", "<unk>", "h"]
    with pytest.raises(InvalidModelFile, match=r"neither all 256 byte pieces nor tokenizer\.ggml.unknown_token_id"):
        Tokenizer.from_metadata(sentencepiece(unknown_token_id=None, **short))


# ---- both ----------------------------------------------------------------------------------------------

BOTH = {"bytelevel": Tokenizer.from_metadata(bytelevel()), "sentencepiece": Tokenizer.from_metadata(sentencepiece())}


@pytest.mark.parametrize("name", BOTH)
@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_round_trip(name: str, text: str) -> None:
    tokenizer = BOTH[name]
    ids = tokenizer.encode(text, parse_special=False).tolist()
    assert tokenizer.decode(ids) == text
    stream = tokenizer.stream()
    assert "".join(map(stream.push, ids)) == text and stream.flush() == ""


@pytest.mark.parametrize("name", BOTH)
@settings(max_examples=300, deadline=None)
@given(data=st.data(), skip_special=st.booleans(), at_start=st.booleans())
def test_a_stream_ends_where_decode_does(name: str, data: st.DataObject, skip_special: bool, at_start: bool) -> None:
    tokenizer = BOTH[name]
    # Lone bytes of UTF-8 often, so that characters stay half and sequences are broken.
    ids = data.draw(st.lists(st.integers(0, tokenizer.n_vocab - 1) | st.integers(128, 255), max_size=30))
    stream = tokenizer.stream(skip_special=skip_special, at_start=at_start)
    pushed = "".join(map(stream.push, ids)) + stream.flush()
    assert pushed == tokenizer.decode(ids, skip_special=skip_special, at_start=at_start)


def test_a_stream_waits_for_whole_characters() -> None:
    tokenizer = BOTH["sentencepiece"]
    stream = tokenizer.stream()
    assert [stream.push(3 + byte) for byte in "\U0001f600".encode()] == ["", "", "", "\U0001f600"]
    assert [stream.push(3 + 0xF0), stream.push(3 + 0x9F), stream.flush()] == ["", "", "\ufffd"]
    assert stream.push(260) == "h", "a flushed stream starts anew"


def test_bad_ids_and_texts() -> None:
    tokenizer = BOTH["bytelevel"]
    for ids, message in (
        ([0, 265], r"token id 265 at 1 is outside \[0, 265\)"),
        ([-1], r"token id -1 at 0 is outside \[0, 265\)"),
        ([[1]], r"ids must be integers in one dimension, not int64 of shape \(1, 1\)"),
        ([1.5], "ids must be integers in one dimension, not float64"),
    ):
        with pytest.raises(TokenizerError, match=message):
            tokenizer.decode(ids)  # type: ignore[arg-type]
    for bad in (-1, 265):
        with pytest.raises(TokenizerError, match=rf"token id {bad} is outside \[0, 265\)"):
            tokenizer.piece(bad)
        with pytest.raises(TokenizerError, match=rf"token id {bad} is outside \[0, 265\)"):
            tokenizer.stream().push(bad)
    with pytest.raises(TokenizerError, match=r"a lone surrogate '\\ud800' at 1"):
        tokenizer.encode("a\ud800")
    with pytest.raises(TokenizerError, match="text must be a str, not bytes"):
        tokenizer.encode(b"a")  # type: ignore[arg-type]
    assert tokenizer.decode([]) == "" and tokenizer.decode(np.array([], np.int32)) == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "tokenizer.ggml.model is missing: the file carries no tokenizer"),
        ({"model": 3}, "tokenizer.ggml.model is a int, it must be a string"),
        ({"pre": ["gpt-2"]}, "tokenizer.ggml.pre is a list, it must be a string"),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokens": []}, "tokenizer.ggml.tokens is empty"),
        ({"tokens": np.arange(3)}, "tokenizer.ggml.tokens is a ndarray, it must be a list of strings"),
        ({"tokens": [["a"]]}, "tokenizer.ggml.tokens is a list, it must be a list of strings"),
        ({"token_type": np.ones(3, np.int32)}, "tokenizer.ggml.token_type has 3 entries for 265 tokens"),
        ({"token_type": ["a"] * 265}, "tokenizer.ggml.token_type is a list, it must be an array of numbers"),
        ({"token_type": np.full(265, 9, np.int32)}, "tokenizer.ggml.token_type[0] is 9, known are 0 to 6"),
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"merges": ["h e", "he"]}, "tokenizer.ggml.merges[1] is 'he', it must be two pieces with a blank between"),
        ({"merges": ["h "]}, "tokenizer.ggml.merges[0] is 'h ', it must be two pieces"),
        ({"merges": [""]}, "tokenizer.ggml.merges[0] is '', it must be two pieces"),
        ({"merges": ["h nope"]}, "tokenizer.ggml.merges[0] is 'h nope', but 'nope' is not in the vocabulary"),
        ({"merges": ["h l"]}, "tokenizer.ggml.merges[0] is 'h l', but 'hl' is not in the vocabulary"),
        ({"bos_token_id": 265}, "tokenizer.ggml.bos_token_id is 265, outside the vocabulary [0, 265)"),
        ({"eos_token_id": -1}, "tokenizer.ggml.eos_token_id is -1, outside the vocabulary"),
        ({"eot_token_id": "x"}, "tokenizer.ggml.eot_token_id is a str, it must be an integer"),
        ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token is a int, it must be a bool"),
    ],
)
def test_lies_about_byte_level_vocabularies(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidModelFile) as caught:
        Tokenizer.from_metadata(bytelevel(**changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "tokenizer.ggml.scores is missing"),
        ({"scores": np.zeros(4, np.float32)}, "tokenizer.ggml.scores has 4 entries for 272 tokens"),
        ({"scores": np.full(272, np.nan, np.float32)}, "tokenizer.ggml.scores[0] is nan, it must be finite"),
        (
            {"token_type": np.full(272, BYTE, np.int32)},
            "tokenizer.ggml.tokens[0] is the byte piece '<unk>', not",
        ),
        ({"tokens": ["x" * 513] * 272}, "tokenizer.ggml.tokens[271] has 513 characters, the limit is 512"),
        ({"add_space_prefix": "no"}, "tokenizer.ggml.add_space_prefix is a str, it must be a bool"),
    ],
)
def test_lies_about_sentencepiece_vocabularies(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidModelFile) as caught:
        Tokenizer.from_metadata(sentencepiece(**changes))
    assert message in str(caught.value)


def test_a_vocabulary_cannot_buy_a_long_loop() -> None:
    tokens = [f"{i:0500d}" for i in range(20_000)]
    began = time.perf_counter()
    with pytest.raises(InvalidModelFile, match="the pieces hold 10000000 characters together, the limit is 8388608"):
        Tokenizer.from_metadata(sentencepiece(tokens=tokens, token_type=None, scores=np.zeros(len(tokens), np.float32)))
    assert time.perf_counter() - began < 5
