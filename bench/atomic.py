"""What it costs that a call which fails never happened, in calls that do not fail.

    python bench/atomic.py [--steps 24] [--json]

Decode steps of one context, in turn as they are (A) and with nothing put aside (B): A B A B, medians. The machine's
noise is larger than the difference, so the time spent on putting aside is also taken by itself, inside A: marking
memory and tables, finding cells that will be overwritten, copying them; once as medians, once as the least of all
steps, which other work on the machine only adds to. Windows are measured past the window, where every row takes a cell
that holds something. The recurrent model is random, with the sizes of a small Mamba.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import polyseq.context
from polyseq import Context, Model
from polyseq.errors import PolyseqWarning
from polyseq.rollback import Rollback

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from tiny_kinds import tiny_mamba

N_SEQS, N_UBATCH, ROOM = 32, 64, 256


class Timed(Rollback):
    """Adds up the seconds that are not the memory's own `apply`."""

    seconds = 0.0

    def __init__(self, *args: Any, **options: Any) -> None:
        start = perf_counter()
        super().__init__(*args, **options)
        Timed.seconds += perf_counter() - start

    def keep(self, slot: Any) -> None:
        start = perf_counter()
        super().keep(slot)
        Timed.seconds += perf_counter() - start


class NothingKept(Rollback):
    """Cannot go back."""

    def __init__(self, memory: Any, cache: Any, slots: Any, *, per_ubatch: bool) -> None:
        self._memory, self._per_ubatch = memory, False

    def keep(self, slot: Any) -> None:
        """It keeps nothing."""


def decoding(ctx: Context, n_seqs: int) -> Callable[[], float]:
    """A step of the first sequences, one token each; gives its seconds."""
    batch, tokens = ctx.batch(), np.arange(3, 3 + n_seqs, dtype=np.int32)

    def step() -> float:
        batch.clear()
        batch.extend(tokens, seq=range(n_seqs), output=True)
        start = perf_counter()
        ctx.decode(batch)
        return perf_counter() - start

    return step


def context(model: Model, *, n_ctx_seq: int, unified: bool) -> Context:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PolyseqWarning)
        return Context(
            model, n_ctx=N_SEQS * n_ctx_seq, n_seq_max=N_SEQS, n_batch=2048, n_ubatch=N_UBATCH, unified=unified
        )


def filled(model: Model, n: int, *, unified: bool) -> Context:
    """Every sequence has read n tokens: the first one did, the others took over what it holds."""
    ctx = context(model, n_ctx_seq=n + ROOM, unified=unified)
    batch = ctx.batch()
    batch.extend(np.random.default_rng(0).integers(0, model.architecture.hparams.n_vocab, n, np.int32), seq=0)
    ctx.decode(batch)
    blob = ctx.save(0)
    for s in range(1, N_SEQS):
        ctx.restore(blob, s)
    return ctx


def past_the_window(model: Model, *, unified: bool) -> Context:
    """The window cache is full."""
    window = context(model, n_ctx_seq=1024, unified=unified).memory.parts[1].n_cells
    return filled(model, window // (N_SEQS if unified else 1), unified=unified)


def cases() -> Iterator[tuple[str, Context, tuple[int, ...]]]:
    """One context after the other: together they do not fit everywhere."""
    yield "kv, unified", filled(Model.load("smollm2-135m"), 128, unified=True), (1, 32)
    gemma3 = Model.load("gemma3-270m")
    for unified in (False, True):
        yield f"window, {'unified' if unified else 'streams'}", past_the_window(gemma3, unified=unified), (1, 8, 32)
    mamba = tiny_mamba(n_layer=24, d_inner=1536, d_state=16, dt_rank=48).model
    yield "recurrent", filled(mamba, 8, unified=False), (1, 32)


def measured(ctx: Context, n_seqs: int, n_steps: int) -> dict[str, float]:
    """Milliseconds of a step as it is, with nothing kept, and of keeping: medians; the share of keeping in percent."""
    step, seconds, kept = decoding(ctx, n_seqs), dict[type[Rollback], list[float]](), list[float]()
    for i in range(n_steps + 2):
        for how in (Timed, NothingKept):
            polyseq.context.Rollback = how  # type: ignore[misc]
            Timed.seconds = 0.0
            took = step()
            if i >= 2:  # two rounds to warm up
                seconds.setdefault(how, []).append(took)
                if how is Timed:
                    kept.append(Timed.seconds)
    polyseq.context.Rollback = Rollback  # type: ignore[misc]
    as_it_is, without = (1e3 * statistics.median(seconds[how]) for how in (Timed, NothingKept))
    keeping = 1e3 * statistics.median(kept)
    shares = {"percent": 100 * keeping / as_it_is, "percent_least": 100 * min(kept) / min(seconds[Timed])}
    return {"ms": as_it_is, "ms_nothing_kept": without, "ms_keeping": keeping, **shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=24, help="pairs of steps per line")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for name, ctx, counts in cases():
        for n_seqs in counts:
            case = found[f"{name} x{n_seqs}"] = measured(ctx, n_seqs, options.steps)
            if not options.json:
                shares = f"{case['percent']:.2f} % (least {case['percent_least']:.2f} %)"
                print(
                    f"{name:16} x{n_seqs:<3} {case['ms']:8.2f} ms, without {case['ms_nothing_kept']:8.2f} ms; "
                    f"keeping {1e3 * case['ms_keeping']:7.0f} us, {shares}",
                    flush=True,
                )
    if options.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
