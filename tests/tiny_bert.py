"""A tiny random BERT as a Hugging Face folder, which transformers and polyseq both read: computed in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray
from safetensors.numpy import save_file

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["the", "cat", "sat", "on", "mat", "dog", "ran", "far", ".", ",", "!", "?", "é"]
PIECES = [*SPECIAL, *LETTERS, *(f"##{c}" for c in LETTERS), *WORDS, "##ing"]
CLS, SEP = 2, 3
N_EMBD, N_LAYER, N_HEAD, N_FF, N_CTX = 32, 2, 4, 48, 48


def tiny_bert(folder: Path, *, n_labels: int | None = None, pooling: str | None = None, seed: int = 0) -> Path:
    """`folder` with config.json, model.safetensors and tokenizer.json; with n_labels a classifier."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "bert",
        "architectures": ["BertModel" if n_labels is None else "BertForSequenceClassification"],
        "vocab_size": len(PIECES),
        "hidden_size": N_EMBD,
        "num_hidden_layers": N_LAYER,
        "num_attention_heads": N_HEAD,
        "intermediate_size": N_FF,
        "max_position_embeddings": N_CTX,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "type_vocab_size": 2,
        "num_labels": n_labels or 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_tensors(n_labels, np.random.default_rng(seed)), folder / "model.safetensors")
    _tokenizer().save(str(folder / "tokenizer.json"))
    if pooling is not None:
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    return folder


def _tensors(n_labels: int | None, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    tensors: dict[str, NDArray[np.float32]] = {}
    prefix = "" if n_labels is None else "bert."

    def linear(name: str, n_out: int, n_in: int) -> None:
        tensors[f"{name}.weight"] = (rng.standard_normal((n_out, n_in)) * 2 / np.sqrt(n_in)).astype(np.float32)
        tensors[f"{name}.bias"] = (0.3 * rng.standard_normal(n_out)).astype(np.float32)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = (1 + 0.2 * rng.standard_normal(N_EMBD)).astype(np.float32)
        tensors[f"{name}.bias"] = (0.2 * rng.standard_normal(N_EMBD)).astype(np.float32)

    for name, n in (("word", len(PIECES)), ("position", N_CTX), ("token_type", 2)):
        rows = rng.standard_normal((n, N_EMBD)).astype(np.float32)
        tensors[f"{prefix}embeddings.{name}_embeddings.weight"] = rows
    norm(f"{prefix}embeddings.LayerNorm")
    for il in range(N_LAYER):
        layer = f"{prefix}encoder.layer.{il}"
        for part in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{part}", N_EMBD, N_EMBD)
        linear(f"{layer}.attention.output.dense", N_EMBD, N_EMBD)
        norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.intermediate.dense", N_FF, N_EMBD)
        linear(f"{layer}.output.dense", N_EMBD, N_FF)
        norm(f"{layer}.output.LayerNorm")
    linear(f"{prefix}pooler.dense", N_EMBD, N_EMBD)
    if n_labels is not None:
        linear("classifier", n_labels, N_EMBD)
    return tensors


def _tokenizer() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece({p: i for i, p in enumerate(PIECES)}, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(strip_accents=False)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(SPECIAL)
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    made.enable_truncation(8)  # as published folders have it; nobody may take it for the model's limit
    made.enable_padding(length=8)
    return made
