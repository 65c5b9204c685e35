"""transformers' own BertModel, batches of 32 texts of like length, as `bench/embed.py` runs it."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from embed_work import Embed, serve
from transformers import AutoModel, AutoTokenizer


def make(options: argparse.Namespace) -> Embed:
    torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModel.from_pretrained(options.model, dtype=getattr(torch, options.dtype)).eval()

    @torch.inference_mode()
    def embed(texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        rows = np.empty((len(texts), model.config.hidden_size), np.float32)
        for first in range(0, len(order), 32):
            some = order[first : first + 32]
            inputs = tokenizer([texts[i] for i in some], padding=True, truncation=True, return_tensors="pt")
            hidden = model(**inputs).last_hidden_state.float()
            mask = inputs["attention_mask"][..., None]
            mean = (hidden * mask).sum(1) / mask.sum(1)
            rows[some] = torch.nn.functional.normalize(mean, dim=1).numpy()
        return rows

    return embed


if __name__ == "__main__":
    serve(make)
