"""Tokens per second of a backend on one model, beside transformers in the same run.

    python bench/generate.py [MODEL] [--backend reference] [--peer] [--rounds 3] [--json]

Prefill of 128 and 512 tokens; decode of 1, 8 and 32 sequences after a prompt of 128, in streams and unified. With
`--peer`, transformers `generate`-style decoding (float32, cached, greedy) runs interleaved with ours: A B A B, medians,
the same thread count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from polyseq import Context, Model

PROMPT = 128
N_STEPS = 16


def prompt_tokens(model: Model, n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, model.architecture.hparams.n_vocab, n, dtype=np.int32)


class Ours:
    """One context for all cases, emptied before each."""

    def __init__(self, model: Model, backend: str) -> None:
        self.model = model
        self.name = backend
        self.contexts = {
            unified: Context(
                model, n_ctx=32 * 192, n_seq_max=32, n_batch=4096, n_ubatch=512, unified=unified, backend=backend
            )
            for unified in (False, True)
        }

    def prefill(self, n: int) -> float:
        """Tokens per second for one prompt of n tokens."""
        ctx = self.contexts[True]
        ctx.memory.clear()
        batch = ctx.batch()
        batch.extend(prompt_tokens(self.model, n), output=np.arange(n) == n - 1)
        start = perf_counter()
        ctx.decode(batch)
        return n / (perf_counter() - start)

    def decode(self, n_seqs: int, *, unified: bool) -> float:
        """Tokens per second in sum, greedy, n_seqs sequences one token at a time."""
        ctx = self.contexts[unified]
        ctx.memory.clear()
        batch = ctx.batch()
        for s in range(n_seqs):
            batch.extend(prompt_tokens(self.model, PROMPT, s), seq=s, output=np.arange(PROMPT) == PROMPT - 1)
        tokens = ctx.decode(batch).argmax()
        seqs = np.arange(n_seqs)
        start = perf_counter()
        for _ in range(N_STEPS):
            batch.clear()
            batch.extend(tokens, seq=seqs, output=True)
            tokens = ctx.decode(batch).argmax()
        return n_seqs * N_STEPS / (perf_counter() - start)


class Transformers:
    """The same weights, dequantised to float32, in transformers."""

    name = "transformers"

    def __init__(self, model: Model, torch: Any, auto: Any) -> None:
        assert model.path is not None
        self.torch = torch
        self.ours = model
        self.model = auto.from_pretrained(str(model.path.parent), gguf_file=model.path.name, dtype=torch.float32).eval()

    def _step(self, tokens: Any, past: Any) -> tuple[Any, Any]:
        with self.torch.inference_mode():
            out = self.model(input_ids=tokens, past_key_values=past, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values

    def prefill(self, n: int) -> float:
        tokens = self.torch.from_numpy(prompt_tokens(self.ours, n).astype(np.int64))[None]
        start = perf_counter()
        self._step(tokens, None)
        return n / (perf_counter() - start)

    def decode(self, n_seqs: int, *, unified: bool) -> float:
        rows = np.stack([prompt_tokens(self.ours, PROMPT, s) for s in range(n_seqs)]).astype(np.int64)
        tokens, past = self._step(self.torch.from_numpy(rows), None)
        start = perf_counter()
        for _ in range(N_STEPS):
            tokens, past = self._step(tokens, past)
        return n_seqs * N_STEPS / (perf_counter() - start)


CASES: dict[str, Callable[[Any], float]] = {
    "prefill 128": lambda e: e.prefill(128),
    "prefill 512": lambda e: e.prefill(512),
    "decode x1": lambda e: e.decode(1, unified=False),
    "decode x8": lambda e: e.decode(8, unified=False),
    "decode x8, unified": lambda e: e.decode(8, unified=True),
    "decode x32": lambda e: e.decode(32, unified=False),
    "decode x32, unified": lambda e: e.decode(32, unified=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--peer", action="store_true", help="measure transformers too (needs the test extra)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model = Model.load(options.model)
    engines: list[Any] = [Ours(model, options.backend)]
    if options.peer:
        engines.append(transformers_peer(model))
    runs: dict[str, dict[str, list[float]]] = {case: {e.name: [] for e in engines} for case in CASES}
    for round_ in range(options.rounds + 1):  # the first round warms up
        for case, measure in CASES.items():
            for engine in engines:
                rate = measure(engine)
                if round_:
                    runs[case][engine.name].append(rate)
    table = {case: {name: statistics.median(rates) for name, rates in row.items()} for case, row in runs.items()}
    if options.json:
        print(json.dumps(table, indent=1))
        return
    names = [e.name for e in engines]
    print(
        f"{'tokens/s, median of ' + str(options.rounds):22}" + "".join(f"{n:>14}" for n in names) + "   ours / theirs"
    )
    for case, row in table.items():
        ratio = f"{row[names[0]] / row[names[1]]:16.2f}" if options.peer else ""
        print(f"{case:22}" + "".join(f"{row[n]:14.0f}" for n in names) + ratio)


def transformers_peer(model: Model) -> Transformers:
    import torch  # noqa: PLC0415  only a peer, not needed to run
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return Transformers(model, torch, AutoModelForCausalLM)


if __name__ == "__main__":
    main()
