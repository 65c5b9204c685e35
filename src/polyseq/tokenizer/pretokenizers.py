"""How byte-level BPE vocabularies cut text into words before merging.

Enters: the name in `tokenizer.ggml.pre`. Leaves: `Pretokenization`: the patterns of that model family, as its
published `tokenizer.json` has them, and the two settings that go with the name. Patterns are applied in order, each
isolating its matches inside the pieces that the ones before left.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from polyseq.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class Pretokenization:
    """Patterns of one family."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a piece is taken whole, without merging up to it
    add_bos: bool = False  # where the file does not say

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Pure. The pre-tokenizer, ending in GPT-2's byte alphabet."""
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SLASH_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _TAIL
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_TEKKEN = f"{_CASED[0]}|{_CASED[1]}|" + r"\p{N}|" + _SLASH_TAIL
_GPT4O = f"{_CASED[0]}{_CONTRACTIONS}?|{_CASED[1]}{_CONTRACTIONS}?|" + r"\p{N}{1,3}|" + _SLASH_TAIL
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_FAMILIES: tuple[tuple[Pretokenization, tuple[str, ...]], ...] = (
    (Pretokenization((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")), ("default",)),
    (Pretokenization((_GPT2,)), ("gpt-2", "gpt2", "mpt", "olmo", "jais", "phi-2", "gigachat")),
    (
        Pretokenization((r"\p{N}", _GPT2)),
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
    ),
    (
        Pretokenization((_LLAMA3,), ignore_merges=True, add_bos=True),
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"),
    ),
    (Pretokenization((_LLAMA3,)), ("dbrx", "smaug-bpe")),
    (Pretokenization((_QWEN2,)), ("qwen2", "stablelm2", "deepseek-r1-qwen")),
    (Pretokenization((_TEKKEN,), ignore_merges=True, add_bos=True), ("tekken",)),
    (Pretokenization((_GPT4O,)), ("gpt-4o", "llama4")),
    (Pretokenization((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")), ("falcon",)),
    (
        Pretokenization((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥\u0800-一가-\ud7ff]+", r"\p{N}")),
        ("deepseek-coder",),
    ),
    (Pretokenization((r"\p{N}{1,3}", "[一-龥\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3)), ("deepseek-v3",)),
)
_BY_NAME = {name: family for family, names in _FAMILIES for name in names}


def pretokenization(name: str | None) -> Pretokenization:
    """Pure. The family of a name; a file that names none is an old one and means "default".

    Raises UnsupportedModel that names the pre-tokenizer and lists those known.
    """
    family = _BY_NAME.get("default" if name is None else name)
    if family is None:
        raise UnsupportedModel(f"the pre-tokenizer {name!r} is not supported; supported: {', '.join(_BY_NAME)}")
    return family
