"""llama.cpp through its own Python bindings (llama-cpp-python), as `bench/compare.py` runs it."""

from __future__ import annotations

import ctypes

import llama_cpp as lc
import numpy as np
from workload import Job, main


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _quiet(level: int, text: bytes, data: object) -> None:
    pass


lc.llama_log_set(_quiet, ctypes.c_void_p(0))
lc.llama_backend_init()


class LlamaCpp:
    """One context; batches of llama.cpp's own flat form."""

    def __init__(self, job: Job) -> None:
        self.model = lc.llama_model_load_from_file(str(job.model).encode(), lc.llama_model_default_params())
        params = lc.llama_context_default_params()
        params.n_ctx = job.n_cells
        params.n_batch = job.n_cells
        params.n_ubatch = 512
        params.n_seq_max = job.n_seqs
        params.kv_unified = job.unified
        params.n_threads = params.n_threads_batch = job.n_threads
        self.ctx = lc.llama_init_from_model(self.model, params)
        self.n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))
        self.batch = lc.llama_batch_init(job.n_cells, 0, 1)
        self.pos: list[int] = []
        self.tokens: list[int] = []

    def __del__(self) -> None:
        lc.llama_batch_free(self.batch)
        lc.llama_free(self.ctx)
        lc.llama_model_free(self.model)

    def start(self, prompts: list[list[int]]) -> list[int]:
        lc.llama_memory_clear(lc.llama_get_memory(self.ctx), True)
        rows = [
            (token, i, seq, i == len(prompt) - 1)
            for seq, prompt in enumerate(prompts)
            for i, token in enumerate(prompt)
        ]
        self.pos = [len(prompt) for prompt in prompts]
        self._decode(rows)
        return self.tokens

    def steps(self, n: int) -> list[list[int]]:
        out = []
        for _ in range(n):
            self._decode([(t, p, s, True) for s, (t, p) in enumerate(zip(self.tokens, self.pos, strict=True))])
            self.pos = [p + 1 for p in self.pos]
            out.append(self.tokens)
        return [list(line) for line in zip(*out, strict=True)]

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> None:
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, pos, seq, output) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, pos, 1, output
            batch.seq_id[i][0] = seq
        code = lc.llama_decode(self.ctx, batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")
        self.tokens = [self._argmax(i) for i, row in enumerate(rows) if row[3]]

    def _argmax(self, i: int) -> int:
        logits = lc.llama_get_logits_ith(self.ctx, i)
        return int(np.ctypeslib.as_array(logits, (self.n_vocab,)).argmax())


if __name__ == "__main__":
    main(LlamaCpp)
