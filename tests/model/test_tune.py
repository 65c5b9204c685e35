"""The cost model on SmolLM2-135M: it predicts the steps of a load that it was not fitted on.

Machines drift, so a measured point and a step of the load take turns, both sides are medians, and what counts is the
median over steps. Where neighbours still disturb one side more, measuring goes on, for three attempts at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from time import perf_counter

import numpy as np
import pytest
from numpy.typing import NDArray

from polyseq import Context, Model
from polyseq.explain.measure import Bench
from polyseq.explain.shapes import UbatchShape, shapes_of

pytestmark = [pytest.mark.model, pytest.mark.timing]

BOUND = 0.15
N_ATTEMPTS = 3
PROMPTS = (90, 37, 61, 12, 75)  # users come one after the other, each two steps after the last
N_BATCH, N_UBATCH, N_STEPS = 40, 24, 22


def load_steps(ctx: Context) -> Iterator[tuple[tuple[UbatchShape, ...], float]]:
    """Shapes and seconds of each step: decoding rows first, prompts in chunks fill the rest."""
    ctx.memory.clear()
    left = list(PROMPTS)
    rng = np.random.default_rng(1)
    for i_step in range(N_STEPS):
        batch = ctx.batch()
        here = [s for s in range(len(PROMPTS)) if i_step >= 2 * s]
        decoding = [s for s in here if not left[s]]
        batch.extend(rng.integers(0, 49152, len(decoding)), seq=decoding, output=True)
        for s in (s for s in here if left[s]):
            n = min(left[s], N_BATCH - len(batch))
            left[s] -= n
            if n:
                batch.extend(rng.integers(0, 49152, n), seq=s, output=np.arange(n) == (n - 1 if not left[s] else -1))
        shapes = shapes_of(ctx.memory, ctx.plan(batch))
        began = perf_counter()
        ctx.decode(batch)
        yield shapes, perf_counter() - began


def errors(bench: Bench, runs: dict[bool, list[NDArray[np.float64]]], shapes: dict[bool, list[tuple[UbatchShape, ...]]]
           ) -> NDArray[np.float64]:  # fmt: skip
    """[n_steps of both memories] relative."""
    cost = bench.measured().cost
    found = []
    for unified, times in runs.items():
        median = np.median(times, axis=0)
        found += [cost.seconds(*s) / t - 1 for s, t in zip(shapes[unified], median, strict=True)]
    return np.array(found)


def test_a_load_that_was_not_measured_is_predicted(smollm2_path: object) -> None:
    model = Model.load(str(smollm2_path))
    bench = Bench(model, most_seconds=0.0)  # ubatches of up to LEAST_ROWS
    contexts = {
        unified: Context(model, n_ctx=5 * 128, n_seq_max=5, n_batch=N_BATCH, n_ubatch=N_UBATCH, unified=unified)
        for unified in (True, False)
    }
    runs: dict[bool, list[NDArray[np.float64]]] = {True: [], False: []}
    shapes: dict[bool, list[tuple[UbatchShape, ...]]] = {}
    middle, points = np.inf, cycle(bench.points)
    for _ in range(N_ATTEMPTS):
        for unified, ctx in contexts.items():
            steps = []
            for step in load_steps(ctx):
                steps.append(step)
                bench.run(next(points))
            shapes[unified] = [s for s, _ in steps]
            runs[unified].append(np.array([t for _, t in steps]))
        found = errors(bench, runs, shapes)
        size = np.abs(found)
        middle = min(middle, float(np.median(size)))
        print(f"median error {np.median(size):.1%}, bias {np.median(found):+.1%}, worst {size.max():.0%}")
        if middle < BOUND:
            break
    assert len(found) == 2 * N_STEPS
    assert middle < BOUND
