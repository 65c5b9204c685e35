"""BERT against transformers on the same files: a tiny cross-encoder, and MiniLM read from a folder and from GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from numpy.typing import NDArray
from transformers import BertForSequenceClassification, BertModel, BertTokenizerFast

from bert_gguf import write_bert_gguf
from polyseq import Context, Model, embed, rerank
from polyseq.embeddings import Embedder
from polyseq.weights.sources import resolve
from tiny_bert import tiny_bert

pytestmark = pytest.mark.oracle

QUERY = "the cat"
TEXTS = ["the dog ran far .", "cats", "", "the cat sat on the mat , the dog ran", "far far far far !", "é sitting"]


def scores_of(folder: Path, query: str, texts: list[str]) -> NDArray[np.float32]:
    """[n_texts, n_labels], each pair alone, tokenized by the library with its own pair template."""
    peer = BertForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    pairs = [tokenizer.encode(query, text) for text in texts]
    with torch.no_grad():
        rows = [peer(torch.tensor([p.ids]), token_type_ids=torch.tensor([p.type_ids])).logits[0] for p in pairs]
    return np.array([row.numpy() for row in rows])


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_rank_equals_transformers(tmp_path: Path, kind: str) -> None:
    folder = tiny_bert(tmp_path / "cross", n_labels=1)
    model = Model.load(folder if kind == "folder" else write_bert_gguf(folder, tmp_path / "cross.gguf"))
    theirs = scores_of(folder, QUERY, TEXTS)[:, 0]
    assert np.ptp(theirs) > 0.1
    np.testing.assert_allclose(rerank(QUERY, TEXTS, model=model), theirs, atol=1e-4)


def test_rank_gives_every_label(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "three", n_labels=3)
    model = Model.load(folder)
    ctx = Context(model, n_seq_max=8)
    batch = ctx.batch()
    query, text = (model.tokenizer.encode(t, add_special=False) for t in (QUERY, TEXTS[0]))
    batch.extend([2, *query, 3, *text, 3], seq=5)
    (theirs,) = scores_of(folder, QUERY, TEXTS[:1])
    np.testing.assert_allclose(ctx.encode(batch).pooled(5), theirs, atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_tiny_encoder_equals_transformers(tmp_path: Path, pooling: Any, seed: int) -> None:
    folder = tiny_bert(tmp_path / "bert", seed=seed)
    peer = BertModel.from_pretrained(folder, dtype=torch.float32).eval()
    model = Model.load(folder)
    found = Embedder(model, pooling=pooling, normalize=False).run(TEXTS)
    for text, row in zip(TEXTS, found.rows, strict=True):
        ids = torch.tensor(model.tokenizer.encode(text)[None].astype(np.int64))
        with torch.no_grad():
            hidden = peer(ids).last_hidden_state[0].numpy()
        wanted = {"mean": hidden.mean(axis=0), "cls": hidden[0], "last": hidden[-1]}[pooling]
        np.testing.assert_allclose(row, wanted, atol=1e-5)


@pytest.mark.model
def test_minilm_from_gguf_equals_transformers(tmp_path: Path) -> None:
    folder = resolve("all-minilm-l6-v2", allow_fetch=True)
    texts = ["A prime number has exactly two divisors.", "Snow fell on the harbour all night long.", "", "Why?"]
    model = Model.load(write_bert_gguf(folder, tmp_path / "minilm.gguf"))
    ours = embed(texts, model=model, normalize=False)
    peer = BertModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = BertTokenizerFast.from_pretrained(folder)
    for text, row in zip(texts, ours, strict=True):
        ids = tokenizer(text, return_tensors="pt")
        assert model.tokenizer.encode(text).tolist() == ids["input_ids"][0].tolist()
        with torch.no_grad():
            wanted = peer(**ids).last_hidden_state[0].numpy().mean(axis=0)
        np.testing.assert_allclose(row, wanted, atol=1e-4)
    np.testing.assert_allclose(ours, embed(texts, model=Model.load(folder), normalize=False), atol=1e-6)
