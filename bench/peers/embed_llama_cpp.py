"""llama.cpp through its own Python bindings (llama-cpp-python), as `bench/embed.py` runs it; the model is a GGUF file.

Whole texts are packed into calls of up to n_batch = n_ubatch tokens and 32 sequences. All rows of a call are compared
with each other, masked or not, so the smallest n_batch that holds the longest text is the fastest: 256 takes a quarter
of the time that 2048 takes for mixed lengths. On a machine with other work its threads wait for each other by turning
around, up to seconds per text; OMP_WAIT_POLICY=passive helps there, and costs on an idle one.
"""

from __future__ import annotations

import argparse

import llama_cpp as lc
import numpy as np
from embed_work import Embed, serve

N_BATCH, N_SEQS = 256, 32


def make(options: argparse.Namespace) -> Embed:
    model = lc.Llama(
        str(options.model),
        embedding=True,
        n_ctx=N_BATCH,
        n_batch=N_BATCH,
        n_ubatch=N_BATCH,
        n_seq_max=N_SEQS,
        n_threads=options.threads,
        n_threads_batch=options.threads,
        pooling_type=lc.LLAMA_POOLING_TYPE_MEAN,
        verbose=False,
    )
    return lambda texts: np.array(model.embed(texts, normalize=True, truncate=False), np.float32)


if __name__ == "__main__":
    serve(make)
