"""Architecture `gemma3`: Gemma 3 (arXiv:2503.19786).

Enters: metadata under `gemma3.*` and tensors under GGUF's names. Leaves: graphs. Step 5. As `llama`, and: embeddings
scaled by sqrt(n_embd), q and k normed head by head, a norm after attention and after the FFN too, a tanh-GELU gate. Of
every six layers five see only a window of positions and turn by an RoPE base of their own. Norm weights in GGUF files
are what x is multiplied by (the 1 that the published weights leave out is in them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from polyseq.graph import KV, KV_SWA, CacheLayer, Graph, KvLayer, Wanted
from polyseq.graph.ops import RopeParams
from polyseq.models.architecture import Architecture, Hparams
from polyseq.models.decoder import ACCEPTS, POOLINGS, DecoderBuilder, Heads, shift_graph
from polyseq.models.metadata import Metadata
from polyseq.models.sizes import MOST, attention_sizes, outer_sizes, rope_scale
from polyseq.weights.weights import Weights

# Every so-many-th layer sees all positions, where the file does not say.
PATTERN = 6
N_LAYER_27B = 62  # this size scales queries by the width over heads instead of the head's width


@dataclass(frozen=True, slots=True)
class Gemma3:
    """A model of architecture `gemma3`."""

    hparams: Hparams
    rms_eps: float
    rope: RopeParams  # of layers that see all positions
    rope_swa: RopeParams
    windowed: tuple[bool, ...]  # [n_layer] which layers see only the last n_swa positions
    weights: Weights
    name: str = "gemma3"
    accepts: frozenset[str] = ACCEPTS
    takes_spans: bool = True
    poolings: frozenset[str] = POOLINGS
    n_pos: int = 1

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], weights: Weights) -> Self:
        """Pure. See `Architecture.from_metadata`."""
        meta = Metadata(metadata, "gemma3")
        meta.only("expert_count", 0)
        meta.only("attention.causal", True)
        meta.only("attn_logit_softcapping", 0.0)
        meta.only("final_logit_softcapping", 0.0)
        scale = rope_scale(meta)
        sizes = attention_sizes(meta, outer_sizes(meta, weights))
        has_window = meta.has("attention.sliding_window")
        hparams = replace(sizes, n_swa=meta.count("attention.sliding_window", at_most=2**31 - 1) if has_window else 0)
        model = cls(
            hparams=hparams,
            rms_eps=meta.positive("attention.layer_norm_rms_epsilon"),
            rope=RopeParams(hparams.n_rot, meta.positive("rope.freq_base", 1e6), scale, "neox"),
            rope_swa=RopeParams(hparams.n_rot, meta.positive("rope.freq_base_swa", 10000.0), mode="neox"),
            windowed=_windowed(meta, hparams) if has_window else (False,) * hparams.n_layer,
            weights=weights,
        )
        model.build(Wanted(hidden=True))  # checks every tensor's shape
        return model

    @property
    def cache_layers(self) -> tuple[CacheLayer | None, ...]:
        """[n_layer] K and V of every token, or of a window."""
        return tuple(self._heads(il).layer for il in range(self.hparams.n_layer))

    def build(self, wanted: Wanted) -> Graph:
        """Pure. See `Architecture.build`."""
        g = DecoderBuilder(self.weights, self.hparams, self.rms_eps, wanted)
        x = g.embed(scale=self.hparams.n_embd**0.5)
        for il in range(self.hparams.n_layer):
            g.layer_input(il, x)
            h = g.norm(f"blk.{il}.attn_norm", x)
            h = g.attention(il, h, self._heads(il))
            x, h = g.out_rows(il, x, h)
            x = g.add(x, g.norm(f"blk.{il}.post_attention_norm", h))
            h = g.norm(f"blk.{il}.ffn_norm", x)
            h = g.ffn(il, h, "gelu_tanh")
            x = g.add(x, g.norm(f"blk.{il}.post_ffw_norm", h))
        return g.finish(x, norm="output_norm")

    def build_shift(self, il: int) -> Graph:
        """Pure. See `Architecture.build_shift`."""
        rope = self._heads(il).rope
        return shift_graph(self.weights, il, rope, shift="shift_swa" if self.windowed[il] else "shift")

    def _heads(self, il: int) -> Heads:
        p, windowed = self.hparams, self.windowed[il]
        width = p.n_embd // p.n_head if p.n_layer == N_LAYER_27B else p.n_embd_head_k
        return Heads(
            layer=KvLayer(p.n_head_kv, p.n_embd_head_k, p.n_embd_head_v, n_swa=p.n_swa if windowed else 0),
            n_head=p.n_head,
            rope=self.rope_swa if windowed else self.rope,
            scale=width**-0.5,
            cache=KV_SWA if windowed else KV,
            norm_eps=self.rms_eps,
        )


def _windowed(meta: Metadata, hparams: Hparams) -> tuple[bool, ...]:
    """Pure. From a flag per layer, or from every how-many-th layer sees all."""
    key = "attention.sliding_window_pattern"
    flags = meta.flags(key, hparams.n_layer)
    if flags is not None:
        return flags
    every = meta.count(key, PATTERN, at_most=MOST)
    return tuple((il + 1) % every != 0 for il in range(hparams.n_layer))


ARCHITECTURE: type[Architecture] = Gemma3
