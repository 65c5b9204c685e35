"""Architecture `llama`: SmolLM2, Llama 2 and 3, Mistral (arXiv:2302.13971, GQA: arXiv:2305.13245).

Enters: metadata under `llama.*` and tensors under GGUF's names. Leaves: graphs. Step 5. Per layer: norm, attention
with rotary positions over the cache, residual; norm, gated FFN, residual. Then norm and head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from polyseq.errors import CapabilityError, InvalidModelFile
from polyseq.graph import Graph, GraphBuilder, Input, KvLayer, Ref, Value, Wanted, Weight
from polyseq.graph.ops import (
    Add,
    Attention,
    CacheShift,
    CacheWrite,
    GetRows,
    Glu,
    Linear,
    RmsNorm,
    Rope,
    RopeParams,
    Select,
    TakeRows,
)
from polyseq.models.architecture import Hparams
from polyseq.models.metadata import Metadata
from polyseq.weights.weights import Weights

# Far above any model there is: a larger count is a broken file, refused before anything is sized by it.
MOST = 1 << 24

POS = Input("pos", ("n_pos", "n_tokens"))
KV = Input("kv", ())


@dataclass(frozen=True, slots=True)
class Llama:
    """A model of architecture `llama`."""

    hparams: Hparams
    rms_eps: float
    rope: RopeParams
    weights: Weights
    name: str = "llama"
    accepts: frozenset[str] = frozenset({"token", "embd", "mixed"})
    n_pos: int = 1

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], weights: Weights) -> Self:
        """Pure. See `Architecture.from_metadata`."""
        meta = Metadata(metadata, "llama")
        meta.only("expert_count", 0)
        meta.only("rope.scaling.type", "none", "linear")
        meta.only("attention.causal", True)
        hparams = _hparams(meta, weights)
        tokens = metadata.get("tokenizer.ggml.tokens")
        if tokens is not None and len(tokens) != hparams.n_vocab:  # type: ignore[arg-type]
            raise InvalidModelFile(
                f"tokenizer.ggml.tokens holds {len(tokens)} tokens, "  # type: ignore[arg-type]
                f"but token_embd.weight has {hparams.n_vocab} rows"
            )
        model = cls(
            hparams=hparams,
            rms_eps=meta.positive("attention.layer_norm_rms_epsilon"),
            rope=RopeParams(hparams.n_rot, meta.positive("rope.freq_base", 10000.0), 1.0 / _rope_factor(meta)),
            weights=weights,
        )
        model.build(Wanted(hidden=True))  # checks every tensor's shape
        return model

    @property
    def cache_layers(self) -> tuple[KvLayer, ...]:
        """[n_layer] every layer keeps K and V of every token."""
        p = self.hparams
        return (KvLayer(p.n_head_kv, p.n_embd_head_k, p.n_embd_head_v),) * p.n_layer

    def build(self, wanted: Wanted) -> Graph:
        """Pure. See `Architecture.build`; what no result needs is left out, cache writes stay."""
        self._check(wanted)
        g = GraphBuilder(self.weights)
        x = self._embed(g, wanted)
        n_layer = self.hparams.n_layer
        for il in range(n_layer):
            last = il == n_layer - 1
            if il in wanted.layers:
                g.result(f"layer.{il}", x)
            h = self._norm(g, f"blk.{il}.attn_norm", x)
            self._cache_write(g, il, h)
            if last and not (wanted.logits or wanted.hidden):
                return g.build()
            h = self._attention(g, il, h)
            if last and not wanted.hidden:
                x, h = self._out_rows(g, x), self._out_rows(g, h)
            x = g.apply(Add(), x, h)
            h = self._norm(g, f"blk.{il}.ffn_norm", x)
            x = g.apply(Add(), x, self._ffn(g, il, h))
        x = self._norm(g, "output_norm", x)
        if wanted.hidden:
            g.result("hidden", x)
        if wanted.logits:
            rows = self._out_rows(g, x) if wanted.hidden else x
            g.result("logits", self._head(g, rows))
        return g.build()

    def build_shift(self, il: int) -> Graph:
        """Pure. See `Architecture.build_shift`."""
        g = GraphBuilder(self.weights)
        g.effect(CacheShift(il, self.rope), Input("shift", ("n_stream", "n_cells")), *self._rope_factors(g))
        return g.build()

    # ---- parts, in the order they run ----------------------------------------------------------------

    def _embed(self, g: GraphBuilder, wanted: Wanted) -> Ref:
        p = self.hparams
        embd = Input("embd", ("n_tokens", p.n_embd))
        if wanted.content == "embd":
            return embd
        rows = g.apply(GetRows(), self._token_embd(g), Input("token", ("n_tokens",)))
        if wanted.content == "token":
            return rows
        return g.apply(Select(), Input("is_embd", ("n_tokens",)), embd, rows)

    def _cache_write(self, g: GraphBuilder, il: int, h: Value) -> None:
        p = self.hparams
        k = self._linear(g, f"blk.{il}.attn_k", h, p.n_head_kv * p.n_embd_head_k)
        k = g.apply(Rope(p.n_embd_head_k, self.rope), k, POS, *self._rope_factors(g))
        v = self._linear(g, f"blk.{il}.attn_v", h, p.n_head_kv * p.n_embd_head_v)
        g.effect(CacheWrite(il, p.n_head_kv), k, v, KV)

    def _attention(self, g: GraphBuilder, il: int, h: Value) -> Value:
        p = self.hparams
        q = self._linear(g, f"blk.{il}.attn_q", h, p.n_head * p.n_embd_head_k)
        q = g.apply(Rope(p.n_embd_head_k, self.rope), q, POS, *self._rope_factors(g))
        scale = p.n_embd_head_k**-0.5
        op = Attention(il, p.n_head, p.n_head_kv, p.n_embd_head_k, p.n_embd_head_v, scale)
        return self._linear(g, f"blk.{il}.attn_output", g.apply(op, q, KV), p.n_embd)

    def _ffn(self, g: GraphBuilder, il: int, h: Value) -> Value:
        p = self.hparams
        gate = self._linear(g, f"blk.{il}.ffn_gate", h, p.n_ff)
        up = self._linear(g, f"blk.{il}.ffn_up", h, p.n_ff)
        return self._linear(g, f"blk.{il}.ffn_down", g.apply(Glu("silu"), gate, up), p.n_embd)

    def _head(self, g: GraphBuilder, x: Value) -> Value:
        p = self.hparams
        output = g.optional("output.weight", p.n_vocab, p.n_embd) or (self._token_embd(g),)  # tied
        return g.apply(Linear(), x, *output)

    # ---- small pieces --------------------------------------------------------------------------------

    def _token_embd(self, g: GraphBuilder) -> Weight:
        return g.weight("token_embd.weight", self.hparams.n_vocab, self.hparams.n_embd)

    def _norm(self, g: GraphBuilder, name: str, x: Ref) -> Value:
        return g.apply(RmsNorm(self.rms_eps), x, g.weight(f"{name}.weight", self.hparams.n_embd))

    def _linear(self, g: GraphBuilder, name: str, x: Value, n_out: int) -> Value:
        n_in = x.shape[1]
        assert isinstance(n_in, int)
        return g.apply(Linear(), x, g.weight(f"{name}.weight", n_out, n_in), *g.optional(f"{name}.bias", n_out))

    def _rope_factors(self, g: GraphBuilder) -> tuple[Weight, ...]:
        """Llama 3's frequency factors."""
        return g.optional("rope_freqs.weight", self.rope.n_rot // 2)

    def _out_rows(self, g: GraphBuilder, x: Ref) -> Value:
        return g.apply(TakeRows(), x, Input("out_rows", ("n_outputs",)))

    def _check(self, wanted: Wanted) -> None:
        n_layer = self.hparams.n_layer
        for il in wanted.layers:
            if not 0 <= il < n_layer:
                raise CapabilityError(f"layer {il} was asked for; the model has layers 0 to {n_layer - 1}")
        if wanted.content not in self.accepts:
            raise CapabilityError(f"content {wanted.content!r} is not one of {sorted(self.accepts)}")


def _hparams(meta: Metadata, weights: Weights) -> Hparams:
    """Pure. Sizes, each bounded before anything is sized by it."""
    if "token_embd.weight" not in weights:
        raise InvalidModelFile("tensor token_embd.weight is missing, wanted with shape [n_vocab, n_embd]")
    n_embd = meta.count("embedding_length", at_most=MOST)
    shape = tuple(weights.info("token_embd.weight").shape)
    if len(shape) != 2 or shape[1] != n_embd:
        raise InvalidModelFile(f"tensor token_embd.weight has shape {list(shape)}, wanted [n_vocab, {n_embd}]")
    # Every layer has tensors of its own, so a file cannot have more layers than tensors.
    n_layer = meta.count("block_count", at_most=len(weights.names()))
    n_head = meta.count("attention.head_count", at_most=MOST)
    n_head_kv = meta.count("attention.head_count_kv", n_head, at_most=MOST)
    if n_head % n_head_kv:
        raise InvalidModelFile(
            f"{meta.name('attention.head_count')} {n_head} is no multiple of "
            f"{meta.name('attention.head_count_kv')} {n_head_kv}"
        )
    if not meta.has("attention.key_length") and n_embd % n_head:
        raise InvalidModelFile(
            f"{meta.name('embedding_length')} {n_embd} is no multiple of "
            f"{meta.name('attention.head_count')} {n_head}, and {meta.name('attention.key_length')} is missing"
        )
    head = max(1, n_embd // n_head)
    head_k = meta.count("attention.key_length", head, at_most=MOST)
    head_v = meta.count("attention.value_length", head, at_most=MOST)
    n_rot = meta.count("rope.dimension_count", head_k, at_most=head_k)
    if n_rot % 2:
        raise InvalidModelFile(f"{meta.name('rope.dimension_count')} is {n_rot}, wanted an even number")
    return Hparams(
        n_vocab=shape[0],
        n_embd=n_embd,
        n_layer=n_layer,
        n_ctx_train=meta.count("context_length", at_most=1 << 31),
        n_head=n_head,
        n_head_kv=n_head_kv,
        n_embd_head_k=head_k,
        n_embd_head_v=head_v,
        n_ff=meta.count("feed_forward_length", at_most=MOST),
        n_rot=n_rot,
    )


def _rope_factor(meta: Metadata) -> float:
    """Pure. By how much positions are stretched; files older than `rope.scaling.type` say `rope.scale_linear`."""
    if meta.has("rope.scaling.type"):
        return meta.positive("rope.scaling.factor") if meta.text("rope.scaling.type") == "linear" else 1.0
    return meta.positive("rope.scale_linear", 1.0)
