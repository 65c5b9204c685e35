"""polyseq, as `bench/compare.py` runs it."""

from __future__ import annotations

import numpy as np
from workload import Job, main

from polyseq import Context, Model

_models: dict[str, Model] = {}


class Ours:
    """One context; sequences take one token a step."""

    def __init__(self, job: Job) -> None:
        model = _models.setdefault(str(job.model), Model.load(job.model))
        self.ctx = Context(
            model,
            n_ctx=job.n_cells,
            n_seq_max=job.n_seqs,
            n_batch=job.n_cells,
            n_ubatch=512,
            unified=job.unified,
        )
        self.tokens = np.zeros(0, np.int32)

    def start(self, prompts: list[list[int]]) -> list[int]:
        self.ctx.memory.clear()
        batch = self.ctx.batch()
        for seq_id, prompt in enumerate(prompts):
            batch.extend(prompt, seq=seq_id, output=np.arange(len(prompt)) == len(prompt) - 1)
        self.tokens = self.ctx.decode(batch).argmax()
        return [int(t) for t in self.tokens]

    def steps(self, n: int) -> list[list[int]]:
        batch, seqs, out = self.ctx.batch(), np.arange(len(self.tokens)), []
        for _ in range(n):
            batch.clear()
            batch.extend(self.tokens, seq=seqs, output=True)
            self.tokens = self.ctx.decode(batch).argmax()
            out.append(self.tokens)
        return np.stack(out, 1).tolist()


if __name__ == "__main__":
    main(Ours)
