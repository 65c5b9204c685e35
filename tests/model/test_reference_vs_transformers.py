"""The reference backend against transformers' `LlamaForCausalLM` in float32, on real and on tiny weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from polyseq.backends import LoadedModel, backend
from polyseq.graph import CachePart, Wanted
from polyseq.models import Architecture, architecture
from polyseq.tokenizer import Tokenizer
from polyseq.weights import GgufFile
from polyseq.weights.sources import resolve
from tiny import Tiny, causal, tiny_llama

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.oracle

F32 = NDArray[np.float32]
TOLERANCE = 1e-3
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time, in a village by the sea, there lived an old clockmaker who " * 8,
    "1 + 1 = 2, 2 + 2 = 4, 4 + 4 =",
]


def theirs(model: Any, tokens: NDArray[np.int32]) -> tuple[F32, list[F32]]:
    """Logits [n, n_vocab] and hidden states: the input of each layer, then the rows after the final norm."""
    with torch.no_grad():
        out = model(torch.from_numpy(tokens[None].astype(np.int64)), output_hidden_states=True)
    return out.logits[0].numpy(), [h[0].numpy() for h in out.hidden_states]


def ours(model: Architecture, loaded: LoadedModel, tokens: NDArray[np.int32]) -> dict[str, F32]:
    kv = loaded.cache((CachePart("kv", 1, len(tokens), dict(enumerate(model.cache_layers))),))
    wanted = Wanted(hidden=True, layers=tuple(range(model.hparams.n_layer)))
    return loaded.plan(model.build(wanted), kv).run(causal(tokens[None]))


def assert_alike(found: dict[str, F32], logits: F32, hidden: list[F32], tolerance: float) -> None:
    assert np.abs(found["logits"] - logits).max() < tolerance
    rows_of = {f"layer.{il}": h for il, h in enumerate(hidden[:-1])}
    rows_of["hidden"] = hidden[-1]
    for name, rows in rows_of.items():
        scale = max(1.0, float(np.abs(rows).max()))  # some rows of layer inputs reach thousands
        assert np.abs(found[name] - rows).max() < tolerance * scale, name
    assert len(found) == len(hidden) + 1


# ---- the real model ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file() -> GgufFile:
    return GgufFile.open(resolve("smollm2-135m", allow_fetch=True))


@pytest.fixture(scope="module")
def loaded(file: GgufFile) -> LoadedModel:
    return backend("reference").load(file)


@pytest.fixture(scope="module")
def oracle() -> Any:
    path = resolve("smollm2-135m", allow_fetch=True)
    return transformers.LlamaForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


@pytest.mark.model
@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: p[:12].strip())
def test_smollm2(file: GgufFile, loaded: LoadedModel, oracle: Any, prompt: str) -> None:
    model = architecture("llama").from_metadata(file.metadata, file)
    tokens = Tokenizer.from_metadata(file.metadata).encode(prompt)
    logits, hidden = theirs(oracle, tokens)
    assert_alike(ours(model, loaded, tokens), logits, hidden, TOLERANCE)


# ---- tiny models, built from the same arrays ---------------------------------------------------------


def llama3_rope() -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }


def with_halves(array: F32, n_head: int) -> F32:
    """Rows of q or k from GGUF's neighbouring pairs (2j, 2j + 1) to transformers' halves (j, j + n / 2)."""
    return array.reshape(n_head, -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def as_transformers(tiny: Tiny, rope: dict[str, Any], *, tied: bool, bias: bool) -> Any:
    p = tiny.architecture.hparams
    config = transformers.LlamaConfig(
        vocab_size=p.n_vocab,
        hidden_size=p.n_embd,
        num_hidden_layers=p.n_layer,
        num_attention_heads=p.n_head,
        num_key_value_heads=p.n_head_kv,
        head_dim=p.n_embd_head_k,
        intermediate_size=p.n_ff,
        max_position_embeddings=p.n_ctx_train,
        rms_norm_eps=1e-5,
        rope_parameters=rope,
        tie_word_embeddings=tied,
        attention_bias=bias,
        mlp_bias=bias,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config).eval()
    names = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    state = {}
    for name, array in tiny.arrays.items():
        if name == "rope_freqs.weight":
            continue
        head, _, kind = name.rpartition(".")
        if head.startswith("blk."):
            _, il, part = head.split(".")
            if part in ("attn_q", "attn_k"):
                array = with_halves(array, p.n_head if part == "attn_q" else p.n_head_kv)
            state[f"model.layers.{il}.{names[part]}.{kind}"] = torch.from_numpy(array.copy())
        else:
            new = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}[head]
            state[f"{new}.{kind}"] = torch.from_numpy(array)
    if tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model


@pytest.mark.parametrize("rope", ["default", "linear", "llama3"])
@pytest.mark.parametrize(("tied", "bias"), [(True, False), (False, True)])
@pytest.mark.parametrize(("n_head", "n_head_kv", "head"), [(4, 2, 8), (6, 1, 10)])
def test_tiny(rope: str, tied: bool, bias: bool, n_head: int, n_head_kv: int, head: int) -> None:
    heads = {"n_head": n_head, "n_head_kv": n_head_kv, "head_k": head, "head_v": head}
    tiny = tiny_llama(n_layer=3, n_embd=48, **heads, tied=tied, bias=bias, seed=1)
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
    if rope == "linear":
        parameters = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
        tiny = tiny.with_metadata(rope__scaling__type="linear", rope__scaling__factor=4.0)
    elif rope == "llama3":
        parameters = llama3_rope()
    model = as_transformers(tiny, parameters, tied=tied, bias=bias)
    if rope == "llama3":
        # A GGUF file of such a model holds, as rope_freqs.weight, by how much each frequency was divided.
        plain = 10000.0 ** (-np.arange(0, head, 2) / head)
        factors = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
        assert factors.min() == pytest.approx(1) and factors.max() == pytest.approx(8)
        tiny = Tiny(tiny.metadata, tiny.arrays | {"rope_freqs.weight": factors})
    tokens = np.random.default_rng(0).integers(0, 64, 100).astype(np.int32)
    logits, hidden = theirs(model, tokens)
    assert np.abs(logits).max() > 1
    assert_alike(ours(tiny.architecture, backend("reference").load(tiny.weights), tokens), logits, hidden, 1e-4)
