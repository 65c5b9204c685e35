"""Architecture `llama`: SmolLM2, Llama 2 and 3, Mistral (arXiv:2302.13971, GQA: arXiv:2305.13245).

Enters: metadata under `llama.*` and tensors under GGUF's names. Leaves: graphs. Step 5. Per layer: norm, attention
with rotary positions over the cache, residual; norm, gated FFN, residual. Then norm and head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from polyseq.graph import CacheLayer, Graph, KvLayer, Wanted
from polyseq.graph.ops import RopeParams
from polyseq.models.architecture import Architecture, Hparams
from polyseq.models.decoder import ACCEPTS, POOLINGS, DecoderBuilder, Heads, shift_graph
from polyseq.models.metadata import Metadata
from polyseq.models.sizes import attention_sizes, outer_sizes, rope_scale
from polyseq.weights.weights import Weights


@dataclass(frozen=True, slots=True)
class Llama:
    """A model of architecture `llama`."""

    hparams: Hparams
    rms_eps: float
    rope: RopeParams
    weights: Weights
    name: str = "llama"
    accepts: frozenset[str] = ACCEPTS
    takes_spans: bool = True
    poolings: frozenset[str] = POOLINGS
    n_pos: int = 1

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], weights: Weights) -> Self:
        """Pure. See `Architecture.from_metadata`."""
        meta = Metadata(metadata, "llama")
        meta.only("expert_count", 0)
        meta.only("attention.causal", True)
        scale = rope_scale(meta)
        hparams = attention_sizes(meta, outer_sizes(meta, weights))
        model = cls(
            hparams=hparams,
            rms_eps=meta.positive("attention.layer_norm_rms_epsilon"),
            rope=RopeParams(hparams.n_rot, meta.positive("rope.freq_base", 10000.0), scale),
            weights=weights,
        )
        model.build(Wanted(hidden=True))  # checks every tensor's shape
        return model

    @property
    def cache_layers(self) -> tuple[CacheLayer | None, ...]:
        """[n_layer] every layer keeps K and V of every token."""
        return (self._heads.layer,) * self.hparams.n_layer

    def build(self, wanted: Wanted) -> Graph:
        """Pure. See `Architecture.build`."""
        g = DecoderBuilder(self.weights, self.hparams, self.rms_eps, wanted)
        x = g.embed()
        for il in range(self.hparams.n_layer):
            g.layer_input(il, x)
            h = g.norm(f"blk.{il}.attn_norm", x)
            h = g.attention(il, h, self._heads)
            x, h = g.out_rows(il, x, h)
            x = g.add(x, h)
            h = g.norm(f"blk.{il}.ffn_norm", x)
            x = g.add(x, g.ffn(il, h, "silu"))
        return g.finish(x, norm="output_norm")

    def build_shift(self, il: int) -> Graph:
        """Pure. See `Architecture.build_shift`."""
        return shift_graph(self.weights, il, self.rope, shift="shift")

    @property
    def _heads(self) -> Heads:
        p = self.hparams
        layer = KvLayer(p.n_head_kv, p.n_embd_head_k, p.n_embd_head_v)
        return Heads(layer, p.n_head, self.rope, scale=p.n_embd_head_k**-0.5)


ARCHITECTURE: type[Architecture] = Llama
