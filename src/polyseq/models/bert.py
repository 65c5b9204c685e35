"""Architecture `bert`: BERT and MiniLM encoders (arXiv:1810.04805), with or without a classifier (cross-encoders).

Enters: metadata under `bert.*` and tensors under GGUF's names. Leaves: graphs. Step 5. Token, position and segment
rows, norm; per layer: attention over the whole sequence, residual, norm; FFN, residual, norm. Then one row per
sequence, or every row. Nothing is kept between calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from polyseq.errors import CapabilityError, InvalidModelFile
from polyseq.graph import SEQS, CacheLayer, Graph, GraphBuilder, Input, Ref, Value, Wanted
from polyseq.graph.encoder_ops import LayerNorm, MeanPool, PositionRows, SegmentRows, SelfAttention
from polyseq.graph.ops import Act, Add, GetRows, Linear, TakeRows
from polyseq.models.architecture import Architecture, Hparams
from polyseq.models.metadata import Metadata
from polyseq.models.sizes import MOST, outer_sizes
from polyseq.weights.weights import Weights

POS = Input("pos", ("n_pos", "n_tokens"))
TOKEN = Input("token", ("n_tokens",))
_SEPARATORS = ("tokenizer.ggml.seperator_token_id", "tokenizer.ggml.eos_token_id")  # spelt so in the format


@dataclass(frozen=True, slots=True)
class Bert:
    """A model of architecture `bert`."""

    hparams: Hparams
    norm_eps: float
    n_segments: int  # kinds of segments; 0: none
    sep: int | None  # the token that ends a segment
    weights: Weights
    name: str = "bert"
    accepts: frozenset[str] = frozenset({"token"})
    takes_spans: bool = False  # every row sees all rows anyway
    n_pos: int = 1

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], weights: Weights) -> Self:
        """Pure. See `Architecture.from_metadata`."""
        meta = Metadata(metadata, "bert")
        meta.only("attention.causal", False)
        hparams = _sizes(meta, weights)
        model = cls(
            hparams=hparams,
            norm_eps=meta.positive("attention.layer_norm_epsilon"),
            n_segments=weights.info("token_types.weight").shape[0] if "token_types.weight" in weights else 0,
            sep=_separator(metadata, hparams.n_vocab),
            weights=weights,
        )
        # builds check every tensor's shape
        model.build(Wanted(logits=False, hidden=True))
        if "rank" in model.poolings:
            model.build(Wanted(logits=False, pooling="rank"))
        return model

    @property
    def poolings(self) -> frozenset[str]:
        """What a sequence can become one row by: rank where the file has a classifier."""
        ranks = "cls.weight" in self.weights or "cls.output.weight" in self.weights
        return frozenset({"mean", "cls", "last"} | ({"rank"} if ranks else set()))

    @property
    def cache_layers(self) -> tuple[CacheLayer | None, ...]:
        """[n_layer] nothing: every row sees rows that come after it, so none can be computed before all are there."""
        return (None,) * self.hparams.n_layer

    def build(self, wanted: Wanted) -> Graph:
        """Pure. See `Architecture.build`."""
        self._check(wanted)
        g = GraphBuilder(self.weights)
        x = self._embed(g, wanted)
        for il in range(self.hparams.n_layer):
            if il in wanted.layers:
                g.result(f"layer.{il}", x)
            h = self._attention(g, il, x)
            if il == self.hparams.n_layer - 1 and not self._needs_all_rows(wanted):
                x, h = _out_rows(g, x), _out_rows(g, h)
            x = self._norm(g, f"blk.{il}.attn_output_norm", g.apply(Add(), x, h))
            h = self._ffn(g, il, x)
            x = self._norm(g, f"blk.{il}.layer_output_norm", g.apply(Add(), x, h))
        if wanted.hidden:
            g.result("hidden", x)
        if wanted.pooling is not None:
            g.result("pooled", self._pooled(g, x, wanted))
        return g.build()

    def build_shift(self, il: int) -> Graph:
        """Pure. See `Architecture.build_shift`: no layer keeps K."""
        return GraphBuilder(self.weights).build()

    # ---- parts, in the order they run ----------------------------------------------------------------

    def _embed(self, g: GraphBuilder, wanted: Wanted) -> Value:
        p = self.hparams
        x = g.apply(GetRows(), g.weight("token_embd.weight", p.n_vocab, p.n_embd), TOKEN)
        if self.n_segments:
            # Only a classifier was trained on pairs of texts; elsewhere a separator in a text starts nothing.
            op = SegmentRows(self.sep if wanted.pooling == "rank" else None)
            table = g.weight("token_types.weight", self.n_segments, p.n_embd)
            x = g.apply(Add(), x, g.apply(op, table, TOKEN, SEQS))
        positions = g.weight("position_embd.weight", p.n_ctx_train, p.n_embd)
        x = g.apply(Add(), x, g.apply(PositionRows(), positions, POS))
        return self._norm(g, "token_embd_norm", x)

    def _attention(self, g: GraphBuilder, il: int, x: Value) -> Value:
        p = self.hparams
        q, k, v = (self._linear(g, f"blk.{il}.attn_{name}", x, p.n_embd) for name in "qkv")
        head_dim = p.n_embd_head_k
        h = g.apply(SelfAttention(p.n_head, head_dim, head_dim**-0.5), q, k, v, SEQS)
        return self._linear(g, f"blk.{il}.attn_output", h, p.n_embd)

    def _ffn(self, g: GraphBuilder, il: int, x: Value) -> Value:
        p = self.hparams
        h = g.apply(Act("gelu"), self._linear(g, f"blk.{il}.ffn_up", x, p.n_ff))
        return self._linear(g, f"blk.{il}.ffn_down", h, p.n_embd)

    def _pooled(self, g: GraphBuilder, x: Value, wanted: Wanted) -> Value:
        if wanted.pooling == "mean":
            return g.apply(MeanPool(), x, SEQS)
        rows = _out_rows(g, x) if self._needs_all_rows(wanted) else x
        return self._classified(g, rows) if wanted.pooling == "rank" else rows

    def _classified(self, g: GraphBuilder, x: Value) -> Value:
        """llama.cpp's head: a dense layer with tanh where the file has `cls`, then `cls.output` where it has that."""
        for name, squashed in (("cls", True), ("cls.output", False)):
            if f"{name}.weight" in self.weights:
                x = self._linear(g, name, x, self.weights.info(f"{name}.weight").shape[0])
                x = g.apply(Act("tanh"), x) if squashed else x
        return x

    # ---- small pieces --------------------------------------------------------------------------------

    def _linear(self, g: GraphBuilder, name: str, x: Value, n_out: int) -> Value:
        n_in = x.shape[1]
        assert isinstance(n_in, int)
        return g.apply(Linear(), x, g.weight(f"{name}.weight", n_out, n_in), *g.optional(f"{name}.bias", n_out))

    def _norm(self, g: GraphBuilder, name: str, x: Value) -> Value:
        n_embd = self.hparams.n_embd
        return g.apply(
            LayerNorm(self.norm_eps), x, *(g.weight(f"{name}.{part}", n_embd) for part in ("weight", "bias"))
        )

    @staticmethod
    def _needs_all_rows(wanted: Wanted) -> bool:
        return wanted.hidden or wanted.pooling == "mean"

    def _check(self, wanted: Wanted) -> None:
        n_layer = self.hparams.n_layer
        for il in wanted.layers:
            if not 0 <= il < n_layer:
                raise CapabilityError(f"layer {il} was asked for; the model has layers 0 to {n_layer - 1}")
        if wanted.content not in self.accepts:
            raise CapabilityError(f"content {wanted.content!r} is not one of {sorted(self.accepts)}")
        if wanted.logits:
            raise CapabilityError("bert models give embeddings, not logits: they predict no next token")
        if wanted.pooling is not None and wanted.pooling not in self.poolings:
            raise CapabilityError(f"pooling {wanted.pooling!r} is not one of {sorted(self.poolings)}")


def _out_rows(g: GraphBuilder, x: Ref) -> Value:
    return g.apply(TakeRows(), x, Input("out_rows", ("n_outputs",)))


def _sizes(meta: Metadata, weights: Weights) -> Hparams:
    outer = outer_sizes(meta, weights)
    n_head = meta.count("attention.head_count", at_most=MOST)
    if outer.n_embd % n_head:
        raise InvalidModelFile(
            f"{meta.name('embedding_length')} {outer.n_embd} is no multiple of "
            f"{meta.name('attention.head_count')} {n_head}"
        )
    return replace(
        outer,
        n_head=n_head,
        n_head_kv=n_head,
        n_embd_head_k=outer.n_embd // n_head,
        n_embd_head_v=outer.n_embd // n_head,
        n_ff=meta.count("feed_forward_length", at_most=MOST),
    )


def _separator(metadata: Mapping[str, object], n_vocab: int) -> int | None:
    for key in _SEPARATORS:
        value = metadata.get(key)
        if isinstance(value, int) and 0 <= value < n_vocab:
            return value
    return None


ARCHITECTURE: type[Architecture] = Bert
