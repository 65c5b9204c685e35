"""Embeddings of real weights against sentence-transformers and transformers on the same files, float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer, BertModel

from polyseq import Model, embed
from polyseq.embeddings import Embedder
from polyseq.weights.sources import resolve

TEXTS = (Path(__file__).parents[1] / "data" / "texts.txt").read_text("utf-8").splitlines()

pytestmark = [pytest.mark.model, pytest.mark.oracle]


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve("all-minilm-l6-v2", allow_fetch=True)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return Model.load(folder)


@pytest.fixture(scope="module")
def ours(model: Model) -> NDArray[np.float32]:
    return embed(TEXTS, model=model)


def cosine(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def test_equals_sentence_transformers(folder: Path, ours: NDArray[np.float32]) -> None:
    st: Any = pytest.importorskip("sentence_transformers")
    peer = st.SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": "float32"})
    theirs = peer.encode(TEXTS, batch_size=32, convert_to_numpy=True)
    assert len(TEXTS) == 256 and ours.shape == theirs.shape == (256, 384)
    assert cosine(ours, theirs).min() >= 0.99999
    assert ((ours @ theirs.T).argmax(axis=1) == np.arange(256)).all()
    np.testing.assert_allclose(ours, theirs, atol=2e-6)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_each_pooling_equals_transformers(folder: Path, model: Model, pooling: Any) -> None:
    peer = BertModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = TEXTS[:12]
    found = Embedder(model, pooling=pooling, normalize=False, n_ubatch=256).run(texts)
    for i, text in enumerate(texts):
        with torch.no_grad():
            rows = peer(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()
        wanted = {"mean": rows.mean(axis=0), "cls": rows[0], "last": rows[-1]}[pooling]
        np.testing.assert_allclose(found.rows[i], wanted, atol=1e-5)


@pytest.mark.parametrize("n_ubatch", [214, 300])
def test_batched_is_single(model: Model, n_ubatch: int) -> None:
    texts = [*TEXTS[:10], max(TEXTS, key=len), ""]
    embedder = Embedder(model, n_ubatch=n_ubatch)
    together = embedder.run(texts).rows
    alone = np.concatenate([embedder.run([text]).rows for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)
