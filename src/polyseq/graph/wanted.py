"""What a caller wants computed for an ubatch; all of it is baked into a graph, so it is the plan cache's key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Content = Literal["token", "embd", "mixed", "both"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The key of a plan.

    Results: "logits" [n_outputs, n_vocab] (of `Inputs.out_rows`), "hidden" [n_tokens, n_embd] (rows after the final
    norm, of every token), "layer.{il}" [n_tokens, n_embd] (input rows of layer il); all f32.
    """

    content: Content = "token"
    logits: bool = True
    hidden: bool = False
    layers: tuple[int, ...] = ()
