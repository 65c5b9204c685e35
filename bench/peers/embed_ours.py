"""polyseq, as `bench/embed.py` runs it."""

from __future__ import annotations

import argparse

from embed_work import Embed, serve

from polyseq import Model
from polyseq.embeddings import Embedder


def make(options: argparse.Namespace) -> Embed:
    embedder = Embedder(Model.load(options.model))
    return lambda texts: embedder.run(texts).rows


if __name__ == "__main__":
    serve(make)
