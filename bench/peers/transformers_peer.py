"""transformers with torch, bf16, as `bench/compare.py` runs it."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM
from workload import Job, main


class Transformers:
    """Left-padded batches and a dynamic cache, as its `generate` uses them."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.n_threads)
        self.model = AutoModelForCausalLM.from_pretrained(
            str(job.model.parent), gguf_file=job.model.name, dtype=torch.bfloat16
        ).eval()

    @torch.inference_mode()
    def start(self, prompts: list[list[int]]) -> list[int]:
        longest = max(map(len, prompts))
        rows = [[0] * (longest - len(p)) + p for p in prompts]
        self.mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        self.past = None
        self.pos = (self.mask.cumsum(-1) - 1).clamp(min=0)
        return self._forward(torch.tensor(rows))

    @torch.inference_mode()
    def steps(self, n: int) -> list[list[int]]:
        out = []
        for _ in range(n):
            self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], 1)
            self.pos = self.pos[:, -1:] + 1
            out.append(self._forward(self.tokens))
        return [list(line) for line in zip(*out, strict=True)]

    def _forward(self, rows: torch.Tensor) -> list[int]:
        result = self.model(
            input_ids=rows,
            attention_mask=self.mask,
            position_ids=self.pos,
            past_key_values=self.past,
            use_cache=True,
            logits_to_keep=1,
        )
        self.past = result.past_key_values
        self.tokens = result.logits[:, -1].argmax(-1, keepdim=True)
        return [int(t) for t in self.tokens[:, 0]]


if __name__ == "__main__":
    main(Transformers, cannot={"unified_32"})
