"""OpenVINO, as `bench/embed.py` runs it: batches of 32 texts of like length, a folder of export_embed.py."""

from __future__ import annotations

import argparse

import numpy as np
import openvino as ov
from embed_work import Embed, serve
from transformers import AutoTokenizer


def make(options: argparse.Namespace) -> Embed:
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    config = {"INFERENCE_NUM_THREADS": options.threads, "PERFORMANCE_HINT": "LATENCY"}
    model = ov.Core().compile_model(options.model / "openvino_model.xml", "CPU", config)
    names = [port.get_any_name() for port in model.inputs]

    def embed(texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        rows = np.empty((len(texts), model.outputs[0].partial_shape[-1].get_length()), np.float32)
        for first in range(0, len(order), 32):
            some = order[first : first + 32]
            inputs = tokenizer([texts[i] for i in some], padding=True, truncation=True, return_tensors="np")
            hidden = model({name: inputs[name] for name in names})[0]
            mask = inputs["attention_mask"][..., None]
            mean = (hidden * mask).sum(1) / mask.sum(1)
            rows[some] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return rows

    return embed


if __name__ == "__main__":
    serve(make)
