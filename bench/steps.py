"""What everything but compute costs, step by step: build, check, split, place, views, outputs, in microseconds.

    python bench/steps.py [--rounds N] [--json]

No model is loaded: ubatches are cut and placed in a real memory, and result rows of the right width are collected as
a backend would hand them over. The least of many interleaved rounds, as what disturbs a round only adds to it.
`split` is the cut alone; `place` is what the memory does beyond it; `views` applies each ubatch and says what its rows
see; `outputs` finds the rows to compute, collects, and looks one up. The last lines are what one more token
costs: the slope between two sizes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyseq.batch import Batch, Limits, check
from polyseq.collector import OutputCollector
from polyseq.memory import KvCache, MemoryPlan
from polyseq.split import split_all

N_VOCAB = 49152  # SmolLM2's
N_UBATCH = 512
STEPS = ("build", "check", "split", "place", "views", "outputs")


class Shape:
    """One kind of call: `lengths` tokens of the sequences 0, 1, ..., on a memory that holds `held` of each."""

    def __init__(self, lengths: list[int], *, held: int = 0, unified: bool = False, packed: bool = True) -> None:
        n_seqs = len(lengths)
        cells = max(lengths) + held + 1
        self.n_tokens = sum(lengths)
        self.memory = KvCache(
            n_cells=cells * n_seqs if unified else cells, n_seq_max=n_seqs, unified=unified, packed=packed
        )
        self.limits = Limits(n_vocab=N_VOCAB, n_seq_max=n_seqs, n_batch=self.n_tokens)
        self.seq = np.repeat(np.arange(n_seqs, dtype=np.int32), lengths)
        self.tokens = np.zeros(self.n_tokens, np.int32)
        self.pos = np.concatenate([np.arange(held, held + n, dtype=np.int32) for n in lengths])
        self.output = np.zeros(self.n_tokens, np.bool_)
        self.output[np.cumsum(lengths) - 1] = True
        self.results: NDArray[np.float32] = np.zeros((n_seqs, N_VOCAB), np.float32)
        if held:
            self._fill(n_seqs, held)

    def _fill(self, n_seqs: int, held: int) -> None:
        batch = Batch()
        batch.extend(np.zeros(held * n_seqs, np.int32), seq=np.repeat(np.arange(n_seqs), held))
        plan = self.memory.init_batch(check(batch, self._no_limits(), self.memory.ranges), N_UBATCH)
        assert isinstance(plan, MemoryPlan)
        for ubatch, slot in zip(plan.ubatches, plan.slots, strict=True):
            self.memory.apply(ubatch, slot)

    def _no_limits(self) -> Limits:
        return Limits(n_vocab=N_VOCAB, n_seq_max=self.memory.n_seq_max)

    def once(self) -> dict[str, float]:
        """Microseconds of each step of one call, which is then taken back; here `place` still cuts as well."""
        at: dict[str, float] = dict.fromkeys(STEPS, 0.0)

        def timed(step: str, call: Callable[[], Any]) -> Any:
            start = perf_counter()
            result = call()
            at[step] += (perf_counter() - start) * 1e6
            return result

        batch = timed("build", self._build)
        checked = timed("check", lambda: check(batch, self.limits, self.memory.ranges))
        timed("split", lambda: split_all(checked, self.memory.strategy, N_UBATCH))
        plan = timed("place", lambda: self.memory.init_batch(checked, N_UBATCH))
        assert isinstance(plan, MemoryPlan)
        mark = timed("place", self.memory.mark)
        collector = timed("outputs", _collector)
        for ubatch, slot in zip(plan.ubatches, plan.slots, strict=True):
            timed("views", lambda u=ubatch, s=slot: self.memory.apply(u, s))
            timed("views", lambda u=ubatch, s=slot: self.memory.views(u, s))
            n_outputs = timed("outputs", lambda u=ubatch: len(u.out_rows))
            results = {"logits": self.results[:n_outputs].view()}
            timed("outputs", lambda u=ubatch, r=results: collector.collect(u, r))
        outputs = timed("outputs", collector.finish)
        timed("outputs", lambda: (outputs.rows, outputs.logits(-1)))
        self.memory.undo(mark, plan.slots)
        return at

    def _build(self) -> Batch:
        batch = Batch()
        batch.extend(self.tokens, seq=self.seq, pos=self.pos, output=self.output)
        return batch


def _collector() -> OutputCollector:
    return OutputCollector(n_vocab=N_VOCAB, n_embd=1, logits=True, pooled=False, hidden=False, layers=())


def shapes() -> dict[str, Shape]:
    """Decoding beside prompts, small beside large, so that slopes can be read off."""
    return {
        "32 x 1, streams, context 200": Shape([1] * 32, held=200),
        "32 x 1, unified, context 200": Shape([1] * 32, held=200, unified=True),
        "256 x 1, streams, context 200": Shape([1] * 256, held=200),
        "1 x 1024, streams": Shape([1024]),
        "1 x 4096, streams": Shape([4096]),
        "256 x 16, streams": Shape([16] * 256),
        "256 x 16, streams, equal cut": Shape([16] * 256, packed=False),
        "8 x (16, 24, 40, 400), streams": Shape([16, 24, 40, 400] * 8),
    }


SLOPES = {
    "decoding": ("32 x 1, streams, context 200", "256 x 1, streams, context 200"),
    "one prompt": ("1 x 1024, streams", "1 x 4096, streams"),
}


def _least(rounds: list[dict[str, float]]) -> dict[str, float]:
    steps = {step: min(r[step] for r in rounds) for step in STEPS}
    return {**steps, "place": max(0.0, steps["place"] - steps["split"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kinds = shapes()
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    for _ in range(options.rounds):
        for name, shape in kinds.items():
            runs[name].append(shape.once())
    table = {name: _least(rounds) for name, rounds in runs.items()}
    slopes = {
        name: {s: (table[b][s] - table[a][s]) / (kinds[b].n_tokens - kinds[a].n_tokens) for s in STEPS}
        for name, (a, b) in SLOPES.items()
    }
    if options.json:
        print(json.dumps({"us": table, "us_per_token": slopes}, indent=1))
        return
    print(f"{'microseconds, least of ' + str(options.rounds):34}" + "".join(f"{s:>9}" for s in (*STEPS, "all")))
    for name, steps in table.items():
        print(f"{name:34}" + "".join(f"{steps[s]:9.0f}" for s in STEPS) + f"{sum(steps.values()):9.0f}")
    for name, steps in slopes.items():
        label = f"per token more, {name}"
        print(f"{label:34}" + "".join(f"{steps[s]:9.3f}" for s in STEPS) + f"{sum(steps.values()):9.3f}")


if __name__ == "__main__":
    main()
