"""Tiny random llamas in memory, and the inputs of one run by hand: models that tests compute in milliseconds.

`tiny_llama()` gives arrays under GGUF's names with the metadata to match; `causal()` gives `Inputs` for rows that
continue contiguous streams, one cell per position, without batch, split or memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from polyseq import Model
from polyseq.graph import Inputs
from polyseq.memory.view import KvView
from polyseq.models import Architecture, architecture
from polyseq.weights import ArrayWeights


@dataclass(frozen=True)
class Tiny:
    """A model in memory; `arrays` are what `weights` holds."""

    metadata: dict[str, object]
    arrays: dict[str, NDArray[np.float32]]

    @property
    def weights(self) -> ArrayWeights:
        return ArrayWeights(self.arrays)

    @property
    def architecture(self) -> Architecture:
        return architecture(self._arch).from_metadata(self.metadata, self.weights)

    @property
    def model(self) -> Model:
        return Model(self.architecture, self.weights, self.metadata)

    @property
    def _arch(self) -> str:
        return str(self.metadata["general.architecture"])

    def with_metadata(self, **changes: object) -> Tiny:
        """A copy with the architecture's keys changed (dots written as `__`), or removed where the value is None."""
        keys = {f"{self._arch}." + name.replace("__", "."): value for name, value in changes.items()}
        return replace(self, metadata={k: v for k, v in (self.metadata | keys).items() if v is not None})


def tiny_llama(
    *,
    n_layer: int = 2,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_embd: int = 32,
    n_ff: int = 48,
    n_vocab: int = 64,
    n_ctx_train: int = 512,
    head_k: int | None = None,
    head_v: int | None = None,
    tied: bool = True,
    rope_freqs: NDArray[np.float32] | bool = False,
    bias: bool = False,
    seed: int = 0,
) -> Tiny:
    """A random llama. `rope_freqs` True makes Llama 3 style frequency factors up, an array gives them."""
    rng = np.random.default_rng(seed)
    k, v = head_k or n_embd // n_head, head_v or n_embd // n_head
    arrays: dict[str, NDArray[np.float32]] = {}

    def matrix(name: str, n_out: int, n_in: int, *, scale: float = 1.0) -> None:
        values = rng.standard_normal((n_out, n_in)) * scale / np.sqrt(n_in)
        arrays[f"{name}.weight"] = values.astype(np.float32)
        if bias and name.startswith("blk."):
            arrays[f"{name}.bias"] = (0.3 * rng.standard_normal(n_out)).astype(np.float32)

    def norm(name: str) -> None:
        arrays[f"{name}.weight"] = (1 + 0.1 * rng.standard_normal(n_embd)).astype(np.float32)

    matrix("token_embd", n_vocab, n_embd, scale=float(np.sqrt(n_embd)))
    for il in range(n_layer):
        norm(f"blk.{il}.attn_norm")
        matrix(f"blk.{il}.attn_q", n_head * k, n_embd, scale=2.0)
        matrix(f"blk.{il}.attn_k", n_head_kv * k, n_embd, scale=2.0)
        matrix(f"blk.{il}.attn_v", n_head_kv * v, n_embd)
        matrix(f"blk.{il}.attn_output", n_embd, n_head * v)
        norm(f"blk.{il}.ffn_norm")
        matrix(f"blk.{il}.ffn_gate", n_ff, n_embd)
        matrix(f"blk.{il}.ffn_up", n_ff, n_embd)
        matrix(f"blk.{il}.ffn_down", n_embd, n_ff)
    norm("output_norm")
    if not tied:
        matrix("output", n_vocab, n_embd)
    if isinstance(rope_freqs, np.ndarray):
        arrays["rope_freqs.weight"] = rope_freqs.astype(np.float32)
    elif rope_freqs:
        arrays["rope_freqs.weight"] = np.linspace(1, 8, k // 2).astype(np.float32)
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": n_layer,
        "llama.context_length": n_ctx_train,
        "llama.embedding_length": n_embd,
        "llama.feed_forward_length": n_ff,
        "llama.attention.head_count": n_head,
        "llama.attention.head_count_kv": n_head_kv,
        "llama.attention.key_length": k,
        "llama.attention.value_length": v,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": k,
        "llama.rope.freq_base": 10000.0,
    }
    return Tiny(metadata, arrays)


def causal_view(streams: Sequence[int], n_tok: int, past: int) -> KvView:
    """`n_tok` rows for each stream at positions `past`..., cell p holding position p."""
    n_kv = past + n_tok
    cells = np.tile(np.arange(past, n_kv, dtype=np.int32), len(streams))
    return KvView(
        n_kv=n_kv,
        streams=np.array(streams, np.int32),
        row_stream=np.repeat(np.arange(len(streams)), n_tok),
        cells=cells,
        pos=cells,
        cell_pos=np.tile(np.arange(n_kv, dtype=np.int32), (len(streams), 1)),
        members=None,
        row_member=None,
    )


def masked_view(streams: Sequence[int], counts: Sequence[int], visible: NDArray[np.bool_]) -> KvView:
    """`counts[i]` rows for stream i that see just what `visible` [n_tokens, n_kv] says, as sequences of their own."""
    n, n_kv = visible.shape
    return KvView(
        n_kv=n_kv,
        streams=np.array(streams, np.int32),
        row_stream=np.repeat(np.arange(len(streams)), counts),
        cells=np.zeros(n, np.int32),
        pos=np.zeros(n, np.int32),
        cell_pos=np.zeros((len(streams), n_kv), np.int32),
        members=visible,
        row_member=np.arange(n),
    )


def causal(
    tokens: Sequence[Sequence[int]] | NDArray[np.int32], *, past: int = 0, first_stream: int = 0, outputs: str = "all"
) -> Inputs:
    """`Inputs` for tokens [n_streams, n_tok] after `past` cells; outputs "all" or "last" rows of each stream."""
    ids = np.asarray(tokens, np.int32)
    n_s, n_tok = ids.shape
    kv = causal_view(range(first_stream, first_stream + n_s), n_tok, past)
    rows = np.arange(n_s * n_tok, dtype=np.int32)
    out_rows = rows if outputs == "all" else rows[n_tok - 1 :: n_tok]
    return Inputs(token=ids.ravel(), pos=kv.cells[None, :], out_rows=out_rows, kv=kv)
