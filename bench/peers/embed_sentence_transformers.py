"""sentence-transformers, as `bench/embed.py` runs it; `--dtype` is torch's, or openvino with its own f32 weights."""

from __future__ import annotations

import argparse

import torch
from embed_work import Embed, serve
from sentence_transformers import SentenceTransformer


def make(options: argparse.Namespace) -> Embed:
    torch.set_num_threads(options.threads)
    if options.dtype.startswith("openvino"):
        # openvino: the f32 file made by export; openvino-int8: the one made by export_static_quantized
        name = "openvino/openvino_model.xml" if options.dtype == "openvino" else "openvino/openvino_model_int8.xml"
        config = {"INFERENCE_NUM_THREADS": str(options.threads), "PERFORMANCE_HINT": "LATENCY"}
        settings = {"file_name": name, "ov_config": config}
        model = SentenceTransformer(str(options.model), backend="openvino", model_kwargs=settings)
    else:
        model = SentenceTransformer(str(options.model), device="cpu", model_kwargs={"dtype": options.dtype})
    return lambda texts: model.encode(texts, batch_size=32, normalize_embeddings=True, convert_to_numpy=True)


if __name__ == "__main__":
    serve(make)
