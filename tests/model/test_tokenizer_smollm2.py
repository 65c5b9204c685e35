"""Tokenizers and templates of real files against recorded ids and against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from polyseq.errors import TokenizerError
from polyseq.tokenizer import Tokenizer
from polyseq.tokenizer.template import ChatTemplate
from polyseq.weights import GgufFile
from polyseq.weights.sources import resolve

pytestmark = pytest.mark.model

DATA = Path(__file__).parents[1] / "conformance" / "data"

TRICKY = [
    "", " ", "  ", "\n", "\n\n  x", "a  b   c", "tab\tand\r\nnewline", "1234567", "3.14159e-10", "½ Ⅷ ²",
    "don't DON'T I'll we've", "naïve café", "e\u0301", "日本語のテキスト", "한국어", "مرحبا بالعالم",
    "👩‍👩‍👧‍👦🇩🇪", "\u200b\ufeff",
    "x" * 1000, " " * 99, "def f(x):\n    return x**2  # comment",
    "<|im_start|>user\nHi<|im_end|>\n", "<|im_start|", "<|im_end|><|im_end|>", "  7  77",
    "<|endoftext|>", "\U0001d54f", "…—“”", "\x00\x7f", "a\u00a0b",
]  # fmt: skip


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_metadata(GgufFile.open(smollm2_path).metadata)


@pytest.fixture(scope="session")
def gemma3() -> Tokenizer:
    return Tokenizer.from_metadata(GgufFile.open(resolve("gemma3-270m", allow_fetch=True)).metadata)


@pytest.fixture(scope="session")
def theirs(smollm2_path: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    # transformers ignores `tokenizer.ggml.pre`; this is what the model's own tokenizer.json has.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


def check_recorded(tokenizer: Tokenizer, name: str) -> None:
    for case in json.loads((DATA / f"tokens_{name}.json").read_text()):
        ids = tokenizer.encode(case["text"])
        assert ids.tolist() == case["tokens"], case["text"]
        assert tokenizer.decode(ids, skip_special=False).removeprefix("<bos>") == case["text"]


def test_recorded_smollm2(smollm2: Tokenizer) -> None:
    check_recorded(smollm2, "smollm2")
    assert (smollm2.n_vocab, smollm2.bos, smollm2.eos, smollm2.eot) == (49152, 1, 2, 2)
    assert smollm2.stop_ids == {0, 2}
    assert [smollm2.piece(i) for i in (2, 7042, 504)] == ["<|im_end|>", " Paris", "The"]


@pytest.mark.timeout(300)
def test_recorded_gemma3(gemma3: Tokenizer) -> None:
    check_recorded(gemma3, "gemma3")
    assert (gemma3.bos, gemma3.eos, gemma3.piece(gemma3.eot or 0)) == (2, 1, "<end_of_turn>")
    for text in TRICKY:
        assert gemma3.decode(gemma3.encode(text, parse_special=False)) == text


def round_trip(tokenizer: Tokenizer, text: str) -> None:
    """Encoding and decoding give the text; a stream gives the same, and no half characters on the way."""
    ids = tokenizer.encode(text, parse_special=False).tolist()
    assert tokenizer.decode(ids) == text
    stream = tokenizer.stream()
    pushed = [stream.push(i) for i in ids]
    assert all("\ufffd" not in part for part in pushed) or "\ufffd" in text
    assert "".join(pushed) == text and stream.flush() == ""


@pytest.mark.parametrize("text", TRICKY)
def test_round_trip(smollm2: Tokenizer, text: str) -> None:
    round_trip(smollm2, text)


@settings(max_examples=300, deadline=None)
@given(text=st.text())
def test_round_trip_of_any_text(smollm2: Tokenizer, text: str) -> None:
    try:
        smollm2.encode(text)
    except TokenizerError as error:
        assert "the vocabulary has no piece for byte 0x" in str(error)
    else:
        round_trip(smollm2, text)


@pytest.mark.oracle
@pytest.mark.parametrize("text", TRICKY)
def test_same_ids_as_transformers(smollm2: Tokenizer, theirs: Any, text: str) -> None:
    assert smollm2.encode(text, add_special=False).tolist() == theirs.encode(text, add_special_tokens=False)


@pytest.mark.oracle
@settings(max_examples=300, deadline=None)
@given(text=st.text() | st.text(st.sampled_from("ab1 \n\t'.é<|>imstarend_")))
def test_same_ids_as_transformers_for_any_text(smollm2: Tokenizer, theirs: Any, text: str) -> None:
    try:
        ids = smollm2.encode(text, add_special=False).tolist()
    except TokenizerError:
        return
    assert ids == theirs.encode(text, add_special_tokens=False)


CHATS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": '1 < 2 & "3"?'}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b\n"}, {"role": "user", "content": " c "}],
]


@pytest.mark.oracle
@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("prompt", [True, False])
def test_same_chat_as_transformers(
    smollm2_path: Path, theirs: Any, messages: list[dict[str, str]], prompt: bool
) -> None:
    metadata = GgufFile.open(smollm2_path).metadata
    template = ChatTemplate.from_metadata(metadata)
    assert template is not None
    ours = template.render(messages, add_generation_prompt=prompt)
    expected = theirs.apply_chat_template(
        messages, chat_template=metadata["tokenizer.chat_template"], add_generation_prompt=prompt, tokenize=False
    )
    assert ours == expected
