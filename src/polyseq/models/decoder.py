"""The parts that decoders share, as a graph builder: embedding, norms, products, attention over a cache, FFN, head.

Enters: an architecture's calls, top-down, layer by layer. Leaves: a graph with just what `Wanted` needs. Step 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from polyseq.errors import CapabilityError
from polyseq.graph import KV, SEQS, Graph, GraphBuilder, Input, Ref, Value, Wanted, Weight
from polyseq.graph.encoder_ops import MeanPool
from polyseq.graph.ops import (
    Add,
    Attention,
    CacheShift,
    CacheWrite,
    Columns,
    GetRows,
    Glu,
    HeadNorm,
    Linear,
    RmsNorm,
    Rope,
    RopeParams,
    Scale,
    Select,
    TakeRows,
)
from polyseq.memory.cache_layer import KvLayer
from polyseq.models.architecture import Hparams
from polyseq.weights.weights import Weights

ACCEPTS = frozenset({"token", "embd", "mixed"})
POOLINGS = frozenset({"mean", "last"})  # the first row has seen nothing but itself

POS = Input("pos", ("n_pos", "n_tokens"))


@dataclass(frozen=True, slots=True)
class Heads:
    """One layer's attention."""

    layer: KvLayer
    n_head: int
    rope: RopeParams
    scale: float
    cache: Input = KV
    norm_eps: float | None = None  # q and k are normed head by head (tensors attn_q_norm, attn_k_norm)


def shift_graph(weights: Weights, il: int, rope: RopeParams, *, shift: Literal["shift", "shift_swa"]) -> Graph:
    """Pure. The graph that turns every K of layer il by the input `shift`, per cell."""
    g = GraphBuilder(weights)
    g.effect(CacheShift(il, rope), Input(shift, ("n_stream", "n_cells")), *rope_factors(g, rope))
    return g.build()


def rope_factors(g: GraphBuilder, rope: RopeParams) -> tuple[Weight, ...]:
    """Pure. Llama 3's frequency factors, where the file has them."""
    return g.optional("rope_freqs.weight", rope.n_rot // 2)


class DecoderBuilder(GraphBuilder):
    """Builds the graph of one decoder for `wanted`; raises CapabilityError for what the model cannot give."""

    def __init__(self, weights: Weights, hparams: Hparams, rms_eps: float, wanted: Wanted) -> None:
        super().__init__(weights)
        self.hparams = hparams
        self._rms_eps = rms_eps
        self._wanted = wanted
        for il in wanted.layers:
            if not 0 <= il < hparams.n_layer:
                raise CapabilityError(f"layer {il} was asked for; the model has layers 0 to {hparams.n_layer - 1}")
        if wanted.content not in ACCEPTS:
            raise CapabilityError(f"content {wanted.content!r} is not one of {sorted(ACCEPTS)}")
        if wanted.pooling is not None and wanted.pooling not in POOLINGS:
            raise CapabilityError(f"pooling {wanted.pooling!r} is not one of {sorted(POOLINGS)}")

    # ---- parts, in the order they run ----------------------------------------------------------------

    def embed(self, *, scale: float = 1.0) -> Ref:
        """Changes the builder: rows of the table, times `scale`; embedding rows of the caller as they are."""
        embd = Input("embd", ("n_tokens", self.hparams.n_embd))
        if self._wanted.content == "embd":
            return embd
        rows = self.apply(GetRows(), self._token_embd(), Input("token", ("n_tokens",)))
        if scale != 1.0:
            rows = self.apply(Scale(scale), rows)
        if self._wanted.content == "token":
            return rows
        return self.apply(Select(), Input("is_embd", ("n_tokens",)), embd, rows)

    def layer_input(self, il: int, x: Ref) -> None:
        """Changes the builder: x enters layer il."""
        if il in self._wanted.layers:
            self.result(f"layer.{il}", x)

    def attention(self, il: int, h: Value, heads: Heads) -> Value:
        """Changes the builder: k and v of h into the cache, then its queries over it."""
        a = heads.layer
        k = self.linear(f"blk.{il}.attn_k", h, a.n_head_kv * a.n_embd_head_k)
        k = self._turned(f"blk.{il}.attn_k_norm", k, heads)
        v = self.linear(f"blk.{il}.attn_v", h, a.n_head_kv * a.n_embd_head_v)
        self.effect(CacheWrite(il, a.n_head_kv), k, v, heads.cache)
        q = self.linear(f"blk.{il}.attn_q", h, heads.n_head * a.n_embd_head_k)
        q = self._turned(f"blk.{il}.attn_q_norm", q, heads)
        op = Attention(il, heads.n_head, a.n_head_kv, a.n_embd_head_k, a.n_embd_head_v, heads.scale)
        return self.linear(f"blk.{il}.attn_output", self.apply(op, q, heads.cache), self.hparams.n_embd)

    def out_rows(self, il: int, x: Ref, h: Value) -> tuple[Ref, Value]:
        """Changes the builder: in the last layer only rows with an output go on, unless all rows are wanted."""
        if il < self.hparams.n_layer - 1 or self._keeps_all_rows:
            return x, h
        return self._take(x), self._take(h)

    def add(self, x: Ref, h: Value) -> Value:
        """Changes the builder: the residual."""
        return self.apply(Add(), x, h)

    def ffn(self, il: int, h: Value, act: Literal["silu", "gelu_tanh"]) -> Value:
        """Changes the builder: the gated FFN."""
        p = self.hparams
        gate = self.linear(f"blk.{il}.ffn_gate", h, p.n_ff)
        up = self.linear(f"blk.{il}.ffn_up", h, p.n_ff)
        return self.linear(f"blk.{il}.ffn_down", self.apply(Glu(act), gate, up), p.n_embd)

    def finish(self, x: Ref, *, norm: str) -> Graph:
        """Pure but for the last nodes: final norm and head, then the graph."""
        x = self.norm(norm, x)
        if self._wanted.hidden:
            self.result("hidden", x)
        rows = self._take(x) if self._keeps_all_rows and (self._wanted.logits or self._wanted.pooling == "last") else x
        if self._wanted.logits:
            self.result("logits", self._head(rows))
        if self._wanted.pooling is not None:
            self.result("pooled", rows if self._wanted.pooling == "last" else self.apply(MeanPool(), x, SEQS))
        return self.build()

    @property
    def _keeps_all_rows(self) -> bool:
        return self._wanted.hidden or self._wanted.pooling == "mean"

    # ---- small pieces --------------------------------------------------------------------------------

    def norm(self, name: str, x: Ref) -> Value:
        """Changes the builder: RMS norm by the weight of that name."""
        return self.apply(RmsNorm(self._rms_eps), x, self.weight(f"{name}.weight", self.hparams.n_embd))

    def linear(self, name: str, x: Value, n_out: int) -> Value:
        """Changes the builder: the product with the weight of that name, and its bias where there is one."""
        n_in = x.shape[1]
        assert isinstance(n_in, int)
        return self.apply(
            Linear(), x, self.weight(f"{name}.weight", n_out, n_in), *self.optional(f"{name}.bias", n_out)
        )

    def columns(self, x: Value, *counts: int) -> list[Value]:
        """Changes the builder: x cut into neighbouring columns, so many each."""
        firsts = [sum(counts[:i]) for i in range(len(counts))]
        return [self.apply(Columns(first, n), x) for first, n in zip(firsts, counts, strict=True)]

    def _turned(self, norm: str, x: Value, heads: Heads) -> Value:
        head_dim, rope = heads.layer.n_embd_head_k, heads.rope
        if heads.norm_eps is not None:
            x = self.apply(HeadNorm(head_dim, heads.norm_eps), x, self.weight(f"{norm}.weight", head_dim))
        return self.apply(Rope(head_dim, rope), x, POS, *rope_factors(self, rope))

    def _token_embd(self) -> Weight:
        return self.weight("token_embd.weight", self.hparams.n_vocab, self.hparams.n_embd)

    def _head(self, x: Ref) -> Value:
        p = self.hparams
        output = self.optional("output.weight", p.n_vocab, p.n_embd) or (self._token_embd(),)  # tied
        return self.apply(Linear(), x, *output)

    def _take(self, x: Ref) -> Value:
        return self.apply(TakeRows(), x, Input("out_rows", ("n_outputs",)))
