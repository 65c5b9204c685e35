"""What a trace costs: decode steps of one sequence, with a trace file and without, in turns.

    python bench/trace.py [MODEL] [--turns N] [--json]

`on the trace` is what the trace itself counts: events made, encoded and written, inside of calls and between them, of
all steps and the last write, over the time of all calls. `by a clock outside` is the time in all methods of the
recorder, those that only read a clock too, less what they take without a trace. Both are sums over all calls, since
calls are written many at once; the medians have the machine's noise.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import Any

from polyseq import Context, Model
from polyseq.trace import Ended, TraceFile, read_trace

PAST = 32
TURN = 50  # steps: as long as some writes are apart
METHODS = ("begin", "checked", "settled", "placed", "applied", "planned", "computed", "collected", "done")


class Timed:
    """A context and what its steps took, and of that the methods of its recorder."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.steps: list[int] = []  # ns
        self.in_recorder = 0
        for name in METHODS:
            setattr(context._trace, name, self._timed(getattr(context._trace, name)))

    def _timed(self, method: Callable[..., None]) -> Callable[..., None]:
        def timed(*args: Any) -> None:
            began = perf_counter_ns()
            method(*args)
            self.in_recorder += perf_counter_ns() - began

        return timed

    def step(self, n: int = 1) -> None:
        batch = self.context.batch()
        batch.extend(range(n), output=[False] * (n - 1) + [True])
        began = perf_counter_ns()
        self.context.decode(batch)
        self.steps.append(perf_counter_ns() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--turns", type=int, default=3, help=f"of {TURN} steps with a trace, and as many without")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model = Model.load(options.model)
    n_ctx = PAST + options.turns * TURN
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        with TraceFile(path) as trace:
            plain = Timed(Context(model, n_ctx=n_ctx, backend=options.backend))
            traced = Timed(Context(model, n_ctx=n_ctx, backend=options.backend, trace=trace))
            for timed in (plain, traced):
                timed.step(PAST)
                timed.steps.clear()
                timed.in_recorder = 0
            for _ in range(options.turns):
                for timed in (plain, traced):
                    for _ in range(TURN):
                        timed.step()
            began = perf_counter_ns()
            trace.flush()
            last = perf_counter_ns() - began
            n_bytes = path.stat().st_size
            ended = [event for event in read_trace(path) if isinstance(event, Ended)][1:]
    spent = [e.trace_ns + e.trace_before_ns for e in ended]
    outside = traced.in_recorder - plain.in_recorder + last
    found = {
        "backend": plain.context.backend,
        "without_ms": median(plain.steps) / 1e6,
        "with_ms": median(traced.steps) / 1e6,
        "trace_us": (sum(spent) + last) / len(ended) / 1e3,
        "trace_share": (sum(spent) + last) / sum(e.ns for e in ended),
        "most_us": max(spent) / 1e3,
        "outside_us": outside / len(ended) / 1e3,
        "outside_share": outside / sum(traced.steps),
        "n_bytes": n_bytes,
    }
    if options.json:
        print(json.dumps(found))
        return
    print(f"{model.name}, {found['backend']} backend, one row a call, {len(ended)} steps with a trace, {TURN} in turn")
    print(f"without a trace {found['without_ms']:.3f} ms, with {found['with_ms']:.3f} ms (medians)")
    print(
        f"on the trace    {found['trace_us']:.0f} us a call, {found['trace_share']:.2%} of the calls; "
        f"{found['most_us']:.0f} us in one of them; {n_bytes} bytes in all"
    )
    print(f"by a clock outside {found['outside_us']:.0f} us a call more than without, {found['outside_share']:.2%}")


if __name__ == "__main__":
    main()
