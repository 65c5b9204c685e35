"""Tiny random models of every architecture that keeps something, each for a kind of memory of its own, in NumPy alone.

`tiny.py` makes llamas (every token kept); here are a gemma3 (a window beside it), a mamba (a running state) and an lfm2
(both). Every tensor is random and matters, so a mistake about any cell shows in the logits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tiny import Tiny

N_VOCAB, N_EMBD, N_FF, N_HEAD, N_HEAD_KV, HEAD = 64, 32, 48, 4, 2, 8
CONTEXT = {"context_length": 512, "embedding_length": N_EMBD, "attention.layer_norm_rms_epsilon": 1e-5}


class Maker:
    """Collects random tensors under GGUF's names."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.arrays: dict[str, NDArray[np.float32]] = {}
        self.matrix("token_embd", N_VOCAB, N_EMBD, scale=N_EMBD**0.5)

    def matrix(self, name: str, n_out: int, n_in: int, *, scale: float = 1.0) -> None:
        values = self._rng.standard_normal((n_out, n_in)) * scale / np.sqrt(n_in)
        self.arrays[f"{name}.weight"] = values.astype(np.float32)

    def norm(self, name: str, width: int = N_EMBD) -> None:
        self.arrays[f"{name}.weight"] = (1 + 0.1 * self._rng.standard_normal(width)).astype(np.float32)

    def vector(self, name: str, width: int, *, mean: float = 0.0) -> None:
        self.arrays[name] = (mean + 0.3 * self._rng.standard_normal(width)).astype(np.float32)

    def attention(self, blk: str) -> None:
        self.matrix(f"{blk}.attn_q", N_HEAD * HEAD, N_EMBD)
        self.matrix(f"{blk}.attn_k", N_HEAD_KV * HEAD, N_EMBD)
        self.matrix(f"{blk}.attn_v", N_HEAD_KV * HEAD, N_EMBD)
        self.matrix(f"{blk}.attn_output", N_EMBD, N_HEAD * HEAD)
        # Above 1, so that attention is no mere average.
        self.arrays[f"{blk}.attn_q_norm.weight"] = np.full(HEAD, 1.5, np.float32)
        self.norm(f"{blk}.attn_k_norm", HEAD)

    def ffn(self, blk: str) -> None:
        self.matrix(f"{blk}.ffn_gate", N_FF, N_EMBD)
        self.matrix(f"{blk}.ffn_up", N_FF, N_EMBD)
        self.matrix(f"{blk}.ffn_down", N_EMBD, N_FF)

    def done(self, architecture: str, fields: dict[str, object]) -> Tiny:
        names = {f"{architecture}.{key}": value for key, value in (CONTEXT | fields).items()}
        return Tiny({"general.architecture": architecture, "general.name": "tiny", **names}, self.arrays)


def tiny_gemma3(*, n_layer: int = 3, n_swa: int = 8, pattern: int = 3, seed: int = 0) -> Tiny:
    """Every `pattern`-th layer sees all positions, the others the last `n_swa`."""
    make = Maker(seed)
    for il in range(n_layer):
        blk = f"blk.{il}"
        make.attention(blk)
        make.ffn(blk)
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            make.norm(f"{blk}.{name}")
    make.norm("output_norm")
    return make.done(
        "gemma3",
        {
            "block_count": n_layer,
            "feed_forward_length": N_FF,
            "attention.head_count": N_HEAD,
            "attention.head_count_kv": N_HEAD_KV,
            "attention.key_length": HEAD,
            "attention.value_length": HEAD,
            "attention.sliding_window": n_swa,
            "attention.sliding_window_pattern": pattern,
            "rope.freq_base": 1e6,
        },
    )


def tiny_mamba(*, n_layer: int = 2, d_inner: int = 48, d_state: int = 6, dt_rank: int = 4, seed: int = 0) -> Tiny:
    """Nothing but running states."""
    make = Maker(seed)
    for il in range(n_layer):
        blk = f"blk.{il}"
        make.norm(f"{blk}.attn_norm")
        make.matrix(f"{blk}.ssm_in", 2 * d_inner, N_EMBD)
        make.matrix(f"{blk}.ssm_conv1d", d_inner, 4)
        make.vector(f"{blk}.ssm_conv1d.bias", d_inner)
        make.matrix(f"{blk}.ssm_x", dt_rank + 2 * d_state, d_inner)
        make.matrix(f"{blk}.ssm_dt", d_inner, dt_rank)
        make.vector(f"{blk}.ssm_dt.bias", d_inner, mean=-2.0)
        make.arrays[f"{blk}.ssm_a"] = -np.tile(np.arange(1, d_state + 1, dtype=np.float32), (d_inner, 1)) / 2
        make.vector(f"{blk}.ssm_d", d_inner, mean=1.0)
        make.matrix(f"{blk}.ssm_out", N_EMBD, d_inner)
    make.norm("output_norm")
    return make.done(
        "mamba",
        {
            "block_count": n_layer,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": d_inner,
            "ssm.state_size": d_state,
            "ssm.time_step_rank": dt_rank,
        },
    )


def tiny_lfm2(*, attends: tuple[bool, ...] = (False, True, False), seed: int = 0) -> Tiny:
    """A short convolution where a layer does not attend."""
    make = Maker(seed)
    for il, attending in enumerate(attends):
        blk = f"blk.{il}"
        make.norm(f"{blk}.attn_norm")
        make.norm(f"{blk}.ffn_norm")
        make.ffn(blk)
        if attending:
            make.attention(blk)
        else:
            make.matrix(f"{blk}.shortconv.in_proj", 3 * N_EMBD, N_EMBD, scale=1.5)
            make.matrix(f"{blk}.shortconv.conv", N_EMBD, 3)
            make.matrix(f"{blk}.shortconv.out_proj", N_EMBD, N_EMBD)
    make.norm("token_embd_norm")
    return make.done(
        "lfm2",
        {
            "block_count": len(attends),
            "feed_forward_length": N_FF,
            "attention.head_count": N_HEAD,
            "attention.head_count_kv": [N_HEAD_KV * attending for attending in attends],
            "shortconv.l_cache": 3,
            "rope.freq_base": 10000.0,
        },
    )
