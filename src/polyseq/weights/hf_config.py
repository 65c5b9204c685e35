"""A Hugging Face folder's JSON files turned into GGUF metadata.

Enters: `config.json` and what lies beside it. Leaves: the keys an architecture reads, named as GGUF names them, so
that models know one kind of metadata. Values are checked where they are used.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gguf.constants import PoolingType

from polyseq.errors import InvalidModelFile, UnsupportedModel

MAX_JSON_BYTES = 1 << 26

# config.json's name for each of GGUF's keys, below `bert.`
_BERT_SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_epsilon": "layer_norm_eps",
}
_BERT_ONLY = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
_POOLING_MODES = {
    "pooling_mode_mean_tokens": PoolingType.MEAN,
    "pooling_mode_cls_token": PoolingType.CLS,
    "pooling_mode_lasttoken": PoolingType.LAST,
}


def folder_metadata(folder: Path) -> dict[str, object]:
    """Pure. GGUF metadata of the model in a folder.

    Raises InvalidModelFile for files that are missing or broken, UnsupportedModel for another kind of model.
    """
    config = read_json(folder / "config.json")
    kind = config.get("model_type")
    if kind != "bert":
        raise UnsupportedModel(
            f"{folder}: config.json says model_type {kind!r}; folders are read for 'bert', other models from GGUF files"
        )
    for key, wanted in _BERT_ONLY.items():
        if config.get(key, wanted) != wanted:
            raise UnsupportedModel(f"{folder}: config.json says {key} {config[key]!r}; supported: {wanted!r}")
    missing = [name for name in _BERT_SIZES.values() if name not in config]
    if missing:
        raise InvalidModelFile(f"{folder}: config.json lacks {', '.join(missing)}")
    metadata: dict[str, object] = {
        "general.architecture": "bert",
        "general.name": folder.name,
        "bert.attention.causal": False,
        "tokenizer.ggml.token_type_count": config.get("type_vocab_size", 2),
    }
    metadata |= {f"bert.{key}": config[name] for key, name in _BERT_SIZES.items()}
    pooling = _pooling(folder, config)
    if pooling is not None:
        metadata["bert.pooling_type"] = int(pooling)
    return metadata | _tokenizer(folder)


def read_json(path: Path) -> dict[str, Any]:
    """Pure. An object. Raises InvalidModelFile."""
    value = _json_of(_text(path), path)
    if not isinstance(value, dict):
        raise InvalidModelFile(f"{path}: holds a {type(value).__name__}, it must be an object")
    return value


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise InvalidModelFile(f"{path}: {path.stat().st_size} bytes, the limit is {MAX_JSON_BYTES}")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidModelFile(f"{path}: cannot be read: {error}") from error


def _json_of(text: str, path: Path) -> object:
    try:
        value: object = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidModelFile(f"{path}: is no JSON: {error}") from error
    return value


def _pooling(folder: Path, config: dict[str, Any]) -> PoolingType | None:
    """Pure. What a sentence-transformers folder says, or what the head is for; None: the folder does not say."""
    architectures = config.get("architectures") or []
    if any(str(name).endswith("ForSequenceClassification") for name in architectures):
        return PoolingType.RANK
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return None
    said = read_json(path)
    on = [key for key, value in said.items() if key.startswith("pooling_mode_") and value is True]
    if len(on) != 1 or on[0] not in _POOLING_MODES:
        raise UnsupportedModel(f"{path}: pools by {on}; supported: one of {', '.join(_POOLING_MODES)}")
    return _POOLING_MODES[on[0]]


def _tokenizer(folder: Path) -> dict[str, object]:
    """Pure. The tokenizer file as it is, under the key the GGUF specification has for it, and the ids models read."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return {}
    text = _text(path)
    said = _json_of(text, path)
    added = said.get("added_tokens") if isinstance(said, dict) else None
    ids = {a["content"]: a["id"] for a in added or [] if isinstance(a, dict) and {"content", "id"} <= a.keys()}
    metadata: dict[str, object] = {"tokenizer.huggingface.json": text}
    for key, piece in (("bos_token_id", "[CLS]"), ("seperator_token_id", "[SEP]"), ("unknown_token_id", "[UNK]")):
        if piece in ids:
            metadata[f"tokenizer.ggml.{key}"] = ids[piece]
    return metadata
