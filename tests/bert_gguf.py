"""A BERT folder written as a GGUF file with the `gguf` package, laid out as published files are."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
from safetensors.numpy import load_file

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_bert_gguf(folder: Path, path: Path) -> Path:
    """`path`, in the folder's own precision. Pieces carry the blank that GGUF marks word starts with."""
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    n_layer = config["num_hidden_layers"]
    ranks = config["architectures"] == ["BertForSequenceClassification"]
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_block_count(n_layer)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.RANK if ranks else gguf.PoolingType.MEAN)
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    pieces = sorted(vocab, key=vocab.__getitem__)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([p if p in _SPECIAL else p[2:] if p.startswith("##") else "\u2581" + p for p in pieces])
    writer.add_token_types([gguf.TokenType.CONTROL if p in _SPECIAL else gguf.TokenType.NORMAL for p in pieces])
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_bos_token_id(vocab["[CLS]"])
    writer.add_sep_token_id(vocab["[SEP]"])
    writer.add_unk_token_id(vocab["[UNK]"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, n_layer)
    heads = {"pooler.dense": "cls", "classifier": "cls.output"}
    for name, tensor in load_file(folder / "model.safetensors").items():
        short = name.removeprefix("bert.")
        stem, _, suffix = short.rpartition(".")
        if stem in heads and ranks:
            writer.add_tensor(f"{heads[stem]}.{suffix}", tensor)
        elif stem not in heads and short != "embeddings.position_ids":
            mapped = names.get_name(short, try_suffixes=(".weight", ".bias"))
            assert mapped is not None
            writer.add_tensor(mapped, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
