"""What a trace costs: decode steps of one sequence, with a trace file and without, in turns.

    python bench/trace.py [MODEL] [--steps N] [--json]

`in the sink` is what the trace itself counts, encoding and writing, and is a part of `with a trace`; the difference of
the two medians holds what is left, nine method calls, and the machine's noise.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from polyseq import Context, Model
from polyseq.trace import Ended, TraceFile, read_trace

PAST = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model = Model.load(options.model)
    n_ctx = PAST + options.steps + 1
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        with TraceFile(path) as trace:
            plain = Context(model, n_ctx=n_ctx, backend=options.backend)
            traced = Context(model, n_ctx=n_ctx, backend=options.backend, trace=trace)
            took: dict[bool, list[float]] = {False: [], True: []}
            for i in range(options.steps + 1):
                for context in (plain, traced):
                    took[context is traced].append(_step(context, PAST if i == 0 else 1))
        ended = [event for event in read_trace(path) if isinstance(event, Ended)][1:]
        n_bytes = path.stat().st_size
    found = {
        "backend": plain.backend,
        "without_ms": 1e3 * median(took[False][1:]),
        "with_ms": 1e3 * median(took[True][1:]),
        "sink_us": median(e.trace_ns / 1e3 for e in ended),
        "sink_share": median(e.trace_ns / e.ns for e in ended),
        "bytes_per_call": n_bytes // len(ended),
    }
    if options.json:
        print(json.dumps(found))
        return
    print(f"{model.name}, {found['backend']} backend, one row a call, medians of {options.steps} in turns")
    print(f"without a trace {found['without_ms']:.3f} ms, with {found['with_ms']:.3f} ms")
    print(f"in the sink     {found['sink_us']:.0f} us, {found['sink_share']:.2%} of its call; {n_bytes} bytes in all")


def _step(context: Context, n: int) -> float:
    batch = context.batch()
    batch.extend(range(n), output=[False] * (n - 1) + [True])
    start = perf_counter()
    context.decode(batch)
    return perf_counter() - start


if __name__ == "__main__":
    main()
