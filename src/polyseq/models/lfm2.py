"""Architecture `lfm2`: LFM2, layers of short convolution and layers of attention (arXiv:2511.23404).

Enters: metadata under `lfm2.*` and tensors under GGUF's names. Leaves: graphs. Step 5. Per layer: norm, mixer,
residual; norm, gated FFN, residual. A layer with no KV heads in the file mixes by a gated causal convolution that keeps
its last inputs as a state; the others attend, q and k normed head by head. The final norm is called token_embd_norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from polyseq.errors import InvalidModelFile, UnsupportedModel
from polyseq.graph import RS, CacheLayer, Graph, GraphBuilder, KvLayer, RsLayer, Value, Wanted
from polyseq.graph.ops import Mul, RopeParams
from polyseq.graph.recurrent_ops import Conv
from polyseq.models.architecture import Architecture, Hparams
from polyseq.models.decoder import ACCEPTS, POOLINGS, DecoderBuilder, Heads, shift_graph
from polyseq.models.metadata import Metadata
from polyseq.models.sizes import MOST, attention_sizes, conv_kernel, outer_sizes, rope_scale
from polyseq.weights.weights import Weights


@dataclass(frozen=True, slots=True)
class Lfm2:
    """A model of architecture `lfm2`."""

    hparams: Hparams
    rms_eps: float
    rope: RopeParams
    attends: tuple[bool, ...]  # [n_layer] which layers attend; the others convolve
    d_conv: int  # kernel of the convolution
    weights: Weights
    name: str = "lfm2"
    accepts: frozenset[str] = ACCEPTS
    takes_spans: bool = False
    poolings: frozenset[str] = POOLINGS
    n_pos: int = 1

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], weights: Weights) -> Self:
        """Pure. See `Architecture.from_metadata`."""
        meta = Metadata(metadata, "lfm2")
        meta.only("expert_count", 0)
        meta.only("attention.causal", True)
        scale = rope_scale(meta)
        outer = outer_sizes(meta, weights)
        n_head_kv = meta.counts("attention.head_count_kv", outer.n_layer, at_most=MOST)
        hparams = attention_sizes(meta, outer, _one_count(meta, n_head_kv))
        model = cls(
            hparams=hparams,
            rms_eps=meta.positive("attention.layer_norm_rms_epsilon"),
            rope=RopeParams(hparams.n_rot, meta.positive("rope.freq_base", 1e6), scale, "neox"),
            attends=tuple(n > 0 for n in n_head_kv),
            d_conv=conv_kernel(meta, "shortconv.l_cache"),
            weights=weights,
        )
        model.build(Wanted(hidden=True))  # checks every tensor's shape
        return model

    @property
    def cache_layers(self) -> tuple[CacheLayer | None, ...]:
        """[n_layer] K and V of every token, or the convolution's last inputs."""
        state = RsLayer((("conv", (self.hparams.n_embd, self.d_conv - 1)),))
        return tuple(self._heads.layer if attends else state for attends in self.attends)

    def build(self, wanted: Wanted) -> Graph:
        """Pure. See `Architecture.build`."""
        g = DecoderBuilder(self.weights, self.hparams, self.rms_eps, wanted)
        x = g.embed()
        for il, attends in enumerate(self.attends):
            g.layer_input(il, x)
            h = g.norm(f"blk.{il}.attn_norm", x)
            h = g.attention(il, h, self._heads) if attends else self._convolution(g, il, h)
            x, h = g.out_rows(il, x, h)
            x = g.add(x, h)
            h = g.norm(f"blk.{il}.ffn_norm", x)
            x = g.add(x, g.ffn(il, h, "silu"))
        return g.finish(x, norm="token_embd_norm")

    def build_shift(self, il: int) -> Graph:
        """Pure. See `Architecture.build_shift`: a convolution's state knows no positions."""
        if not self.attends[il]:
            return GraphBuilder(self.weights).build()
        return shift_graph(self.weights, il, self.rope, shift="shift")

    @property
    def _heads(self) -> Heads:
        p = self.hparams
        layer = KvLayer(p.n_head_kv, p.n_embd_head_k, p.n_embd_head_v)
        return Heads(layer, p.n_head, self.rope, scale=p.n_embd_head_k**-0.5, norm_eps=self.rms_eps)

    def _convolution(self, g: DecoderBuilder, il: int, h: Value) -> Value:
        n_embd = self.hparams.n_embd
        before, after, x = g.columns(g.linear(f"blk.{il}.shortconv.in_proj", h, 3 * n_embd), n_embd, n_embd, n_embd)
        x = g.apply(Mul(), before, x)
        kernel = g.weight(f"blk.{il}.shortconv.conv.weight", n_embd, self.d_conv)
        x = g.apply(Conv(il, self.d_conv), x, kernel, *g.optional(f"blk.{il}.shortconv.conv.bias", n_embd), RS)
        return g.linear(f"blk.{il}.shortconv.out_proj", g.apply(Mul(), after, x), n_embd)


def _one_count(meta: Metadata, n_head_kv: tuple[int, ...]) -> int:
    """Pure. The KV heads of all layers that attend."""
    counts = sorted(set(n_head_kv) - {0})
    if len(counts) > 1:
        raise UnsupportedModel(f"{meta.name('attention.head_count_kv')} differs between layers: {counts}")
    if not counts:
        raise InvalidModelFile(f"{meta.name('attention.head_count_kv')} is 0 for every layer: none attends")
    return counts[0]


ARCHITECTURE: type[Architecture] = Lfm2
