"""What every architecture offers: sizes, what it accepts, and graphs.

Enters: a file's metadata and weights. Leaves: graphs for what is `Wanted`, and the sizes that batch, memory and
tokenizer are checked against. Step 5; knows graphs, not the backends that run them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from polyseq.graph import CacheLayer, Graph, Wanted
from polyseq.weights.weights import Weights


@dataclass(frozen=True, slots=True)
class Hparams:
    """Sizes, in llama.cpp's words; 0 for what a model does not have."""

    n_vocab: int
    n_embd: int
    n_layer: int
    n_ctx_train: int
    n_head: int = 0
    n_head_kv: int = 0
    n_embd_head_k: int = 0
    n_embd_head_v: int = 0
    n_ff: int = 0
    n_rot: int = 0
    n_swa: int = 0  # the window of layers that have one


class Architecture(Protocol):
    """One model's structure: `hparams`, and graphs built from them."""

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], weights: Weights) -> Self:
        """Pure. Checks all metadata and every tensor's shape, reading no data.

        Raises InvalidModelFile for what is missing or inconsistent, UnsupportedModel for what polyseq does not run.
        """
        ...

    @property
    def name(self) -> str:
        """GGUF's general.architecture."""
        ...

    @property
    def hparams(self) -> Hparams: ...

    @property
    def accepts(self) -> frozenset[str]:
        """The contents a batch may carry: of "token", "embd", "mixed"."""
        ...

    @property
    def takes_spans(self) -> bool:
        """Whether rows of a span can see each other in both directions: what lies between rows is attention alone."""
        ...

    @property
    def poolings(self) -> frozenset[str]:
        """How a sequence can become one row: of "mean", "cls", "last", "rank"."""
        ...

    @property
    def cache_layers(self) -> tuple[CacheLayer | None, ...]:
        """[n_layer] what each layer keeps between calls, None for nothing."""
        ...

    @property
    def n_pos(self) -> int:
        """Position values per row: 1, or 4 for M-RoPE."""
        ...

    def build(self, wanted: Wanted) -> Graph:
        """Pure. The graph for one ubatch of any size. Raises CapabilityError for what the model cannot give."""
        ...

    def build_shift(self, il: int) -> Graph:
        """Pure. The graph that rotates every K of layer il, per cell, by `Inputs.shift` (`shift_swa` with a window).

        Only asked of layers that keep K.
        """
        ...
