"""Texts to vectors, and texts ranked for a query: many at once, in the caller's order.

Enters: texts and a model. Leaves: an array. Packs whole texts into calls of one context; stands beside the engine.
"""

from polyseq.embeddings.embed import Embedded, Embedder, embed
from polyseq.embeddings.refused import Refused, TextsRefused
from polyseq.embeddings.rerank import rerank
from polyseq.embeddings.token_columns import TooLong

__all__ = ["Embedded", "Embedder", "Refused", "TextsRefused", "TooLong", "embed", "rerank"]
