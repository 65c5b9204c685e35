"""One of the two processes of duel.py: takes a step when it is told to, and says how long it took.

Enters: lines "CASE" on stdin, as in `duel.py --help`. Leaves: seconds per step, a line each.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable

import numpy as np

from polyseq import Context, Model

N_PROMPT, N_MOST = 128, 192  # tokens in cells before the first step, and when they are taken back
N_WARM = 3


def prefill(model: Model, n: int, backend: str) -> Callable[[], float]:
    """A step is a prompt of n tokens."""
    ctx = Context(model, n_ctx=n, n_seq_max=1, n_batch=n, n_ubatch=min(n, 512), backend=backend)
    batch, tokens = ctx.batch(), np.random.default_rng(0).integers(5, 5000, n)

    def step() -> float:
        ctx.memory.clear()
        batch.clear()
        batch.extend(tokens, seq=np.zeros(n, int), output=False)
        return timed(lambda: ctx.decode(batch))

    return step


def decode(model: Model, n: int, backend: str, *, unified: bool) -> Callable[[], float]:
    """A step is one token of each of n sequences."""
    ctx = Context(model, n_ctx=256 * n, n_seq_max=n, n_batch=8192, n_ubatch=512, backend=backend, unified=unified)
    batch, rng, seqs = ctx.batch(), np.random.default_rng(0), np.arange(n)
    batch.extend(rng.integers(5, 5000, N_PROMPT * n), seq=np.repeat(seqs, N_PROMPT), output=False)
    ctx.decode(batch)

    def step() -> float:
        if ctx.memory.pos_max(0) >= N_MOST:
            for seq in seqs.tolist():
                ctx.memory.rm(seq, N_PROMPT, -1)
        batch.clear()
        batch.extend(rng.integers(5, 5000, n), seq=seqs, output=True)
        return timed(lambda: ctx.decode(batch))

    return step


def timed(do: Callable[[], object]) -> float:
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


def main() -> None:
    warnings.simplefilter("ignore")
    model, backend = Model.load(sys.argv[1]), sys.argv[2]
    steps: dict[str, Callable[[], float]] = {}
    for line in sys.stdin:
        case = line.strip()
        if case not in steps:
            kind, n = case.rsplit("_", 1)
            steps[case] = (
                prefill(model, int(n), backend)
                if kind == "prefill"
                else decode(model, int(n), backend, unified=kind == "unified")
            )
            for _ in range(N_WARM):
                steps[case]()
        print(steps[case](), flush=True)


if __name__ == "__main__":
    main()
