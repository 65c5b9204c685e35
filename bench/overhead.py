"""What everything but compute costs: build, check, cut and place, apply, view, collect, in microseconds.

    python bench/overhead.py [--json]

No model is loaded: ubatches are placed in a real memory, and result rows of the right width are copied as a backend
would hand them over. Medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyseq.batch import Batch, Limits, check
from polyseq.memory import KvCache, MemoryPlan
from polyseq.outputs import OutputCollector

N_VOCAB = 49152  # SmolLM2's
STEPS = ("build", "check", "place", "apply", "view", "collect")


class Shape:
    """One kind of call: `prompt` tokens for each of `n_seqs` sequences, on a memory that holds `held` of each."""

    def __init__(self, name: str, *, n_seqs: int, prompt: int, held: int, unified: bool) -> None:
        self.name = name
        self.n_tokens = n_seqs * prompt
        self.n_seqs = n_seqs
        cells = prompt + held + 1
        self.memory = KvCache(n_cells=cells * n_seqs if unified else cells, n_seq_max=n_seqs, unified=unified)
        self.limits = Limits(n_vocab=N_VOCAB, n_seq_max=n_seqs, n_batch=self.n_tokens)
        self.seq = np.repeat(np.arange(n_seqs, dtype=np.int32), prompt)
        self.tokens = np.zeros(self.n_tokens, np.int32)
        self.pos = np.tile(np.arange(held, held + prompt, dtype=np.int32), n_seqs)
        self.output = np.zeros(self.n_tokens, np.bool_)
        self.output[prompt - 1 :: prompt] = True
        if held:
            self._fill(held)

    def _fill(self, held: int) -> None:
        batch = Batch()
        batch.extend(np.zeros(held * self.n_seqs, np.int32), seq=np.repeat(np.arange(self.n_seqs), held))
        checked = check(batch, Limits(n_vocab=N_VOCAB, n_seq_max=self.n_seqs), self.memory.ranges)
        plan = self.memory.init_batch(checked, 512)
        assert isinstance(plan, MemoryPlan)
        for ubatch, slot in zip(plan.ubatches, plan.slots, strict=True):
            self.memory.apply(ubatch, slot)

    def once(self) -> dict[str, float]:
        """Microseconds of each step of one call, which is then taken back."""
        at: dict[str, float] = dict.fromkeys(STEPS, 0.0)

        def timed(step: str, call: Callable[[], Any]) -> Any:
            start = perf_counter()
            result = call()
            at[step] += (perf_counter() - start) * 1e6
            return result

        batch = timed("build", self._build)
        checked = timed("check", lambda: check(batch, self.limits, self.memory.ranges))
        plan = timed("place", lambda: self.memory.init_batch(checked, 512))
        assert isinstance(plan, MemoryPlan)
        collector = OutputCollector(n_vocab=N_VOCAB, n_embd=1, hidden=False, layers=())
        mark = self.memory.mark()
        for ubatch, slot in zip(plan.ubatches, plan.slots, strict=True):
            timed("apply", lambda u=ubatch, s=slot: self.memory.apply(u, s))
            timed("view", lambda u=ubatch, s=slot: self.memory.view(u, s))
            logits: NDArray[np.float32] = np.zeros((int(ubatch.output.sum()), N_VOCAB), np.float32)
            timed("collect", lambda u=ubatch, rows=logits: collector.collect(u, {"logits": rows}))
        timed("collect", collector.finish)
        self.memory.undo(mark, plan.slots)
        return at

    def _build(self) -> Batch:
        batch = Batch()
        batch.extend(self.tokens, seq=self.seq, pos=self.pos, output=self.output)
        return batch


SHAPES = {
    "32 x 1, streams, context 200": {"n_seqs": 32, "prompt": 1, "held": 200, "unified": False},
    "32 x 1, unified, context 200": {"n_seqs": 32, "prompt": 1, "held": 200, "unified": True},
    "256 x 1, streams, context 200": {"n_seqs": 256, "prompt": 1, "held": 200, "unified": False},
    "1 x 1024, streams": {"n_seqs": 1, "prompt": 1024, "held": 0, "unified": False},
    "1 x 4096, streams": {"n_seqs": 1, "prompt": 4096, "held": 0, "unified": False},
    "32 x 128, streams": {"n_seqs": 32, "prompt": 128, "held": 0, "unified": False},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    shapes = [Shape(name, **sizes) for name, sizes in SHAPES.items()]
    runs: dict[str, list[dict[str, float]]] = {shape.name: [] for shape in shapes}
    for _ in range(options.rounds):
        for shape in shapes:
            runs[shape.name].append(shape.once())
    table = {
        name: {step: statistics.median(r[step] for r in rounds) for step in STEPS} for name, rounds in runs.items()
    }
    if options.json:
        print(json.dumps(table, indent=1))
        return
    print(f"{'microseconds, median of ' + str(options.rounds):34}" + "".join(f"{s:>9}" for s in (*STEPS, "all")))
    for name, steps in table.items():
        print(f"{name:34}" + "".join(f"{steps[s]:9.0f}" for s in STEPS) + f"{sum(steps.values()):9.0f}")


if __name__ == "__main__":
    main()
