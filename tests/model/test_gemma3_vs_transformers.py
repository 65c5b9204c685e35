"""Gemma 3 270M on the reference backend against transformers' `Gemma3ForCausalLM` in float32, same dequantised weights.

Prompts reach past the window, so that both kinds of layers and what the window cache lets go are compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyseq import Context, Model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
hf_gguf: Any = pytest.importorskip("hf_gguf")

pytestmark = [pytest.mark.oracle, pytest.mark.model]

TOLERANCE = 1e-3
DOCS = Path(__file__).parents[2] / "docs"
PROMPTS = {
    "short": "The capital of France is",
    "code": "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "numbers": "1 + 1 = 2, 2 + 2 = 4, 4 + 4 =",
    "longer than the window": (DOCS / "architecture.md").read_text(encoding="utf-8")[:3000],
}
N_COMPARED = 24  # rows with logits: a row of 262144 takes a megabyte


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load("gemma3-270m")


@pytest.fixture(scope="module")
def oracle(model: Model) -> Any:
    p = model.architecture.hparams
    config = transformers.Gemma3TextConfig(
        vocab_size=p.n_vocab,
        hidden_size=p.n_embd,
        intermediate_size=p.n_ff,
        num_hidden_layers=p.n_layer,
        num_attention_heads=p.n_head,
        num_key_value_heads=p.n_head_kv,
        head_dim=p.n_embd_head_k,
        query_pre_attn_scalar=p.n_embd_head_k,
        sliding_window=p.n_swa,
        max_position_embeddings=p.n_ctx_train,
        rms_norm_eps=1e-6,
        attn_implementation="eager",
    )
    return hf_gguf.read_gguf(transformers.Gemma3ForCausalLM(config).eval(), model.weights)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_gemma3_270m(model: Model, oracle: Any, prompt: str) -> None:
    tokens = model.tokenizer.encode(PROMPTS[prompt])
    assert (len(tokens) > 1.2 * model.architecture.hparams.n_swa) == (prompt == "longer than the window")
    rows = np.unique(np.linspace(0, len(tokens) - 1, N_COMPARED).astype(int))
    with torch.no_grad():
        ids = torch.from_numpy(tokens[None].astype(np.int64))
        wanted = oracle(ids, use_cache=False, logits_to_keep=torch.from_numpy(rows)).logits[0].numpy()
    for n_ubatch in (1024, 100):
        ctx = Context(model, n_ctx=1024, n_batch=1024, n_ubatch=n_ubatch, backend="reference")
        batch = ctx.batch()
        batch.extend(tokens, output=np.isin(np.arange(len(tokens)), rows))
        assert np.abs(ctx.decode(batch).all_logits() - wanted).max() < TOLERANCE
