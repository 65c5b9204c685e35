"""What a caller wants computed for an ubatch; all of it is baked into a graph, so it is the plan cache's key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Content = Literal["token", "embd", "mixed", "both"]
Pooling = Literal["mean", "cls", "last", "rank"]  # llama.cpp's words; rank: what the model's classifier says of cls


@dataclass(frozen=True, slots=True)
class Wanted:
    """The key of a plan.

    Results: "logits" [n_outputs, n_vocab] (of `Inputs.out_rows`), "hidden" [n_tokens, n_embd] (rows after the final
    norm, of every token), "layer.{il}" [n_tokens, n_embd] (input rows of layer il), "pooled" [n_seqs, n_embd or
    labels] (one row per sequence; cls, last and rank pool `Inputs.out_rows`, mean the rows of `Inputs.seqs`); all f32.
    """

    content: Content = "token"
    logits: bool = True
    hidden: bool = False
    layers: tuple[int, ...] = ()
    pooling: Pooling | None = None
