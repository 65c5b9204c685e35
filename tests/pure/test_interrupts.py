"""What ends a call from outside - another thread, a signal, no memory - for every kind of memory and on both backends.

`test_atomic.py` fails computations; here the call is stopped as programs are stopped.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from polyseq import Context
from polyseq import errors as e
from polyseq.memory import window_pair
from test_atomic import AFTER, CALL, KINDS, PAST, contents, context, logits, rows


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch, on_each_backend: None) -> None:
    monkeypatch.setattr(window_pair, "WINDOW_PAD", 1)


def before_ubatch(ctx: Context, at: int, act: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """`act` is done as the `at`-th ubatch from now on is about to be computed."""
    compute, left = ctx._compute.ubatch, [at]

    def acting(*args: Any) -> None:
        if left[0] == 0:
            act()
        left[0] -= 1
        compute(*args)

    monkeypatch.setattr(ctx._compute, "ubatch", acting)


def from_another_thread(act: Callable[[], Any]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def no_memory() -> None:
    raise MemoryError("injected")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["thread", "signal", "memory"])
def test_a_call_that_is_stopped_never_happened(kind: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clean, ctx = context(kind), context(kind)
    for c in (clean, ctx):
        logits(c, *PAST)
    before, held = ctx.memory.columns(), contents(ctx)
    act, error = {
        "thread": (lambda: from_another_thread(ctx.abort), e.Aborted),
        "signal": (lambda: os.kill(os.getpid(), signal.SIGINT), KeyboardInterrupt),
        "memory": (no_memory, MemoryError),
    }[how]
    with monkeypatch.context() as patch:
        before_ubatch(ctx, 1, act, patch)
        with pytest.raises(error):
            ctx.decode(rows(ctx, *CALL))
    assert ctx.memory.columns() == before and contents(ctx) == held
    ctx.memory.check()
    for tokens in (CALL, AFTER):
        np.testing.assert_array_equal(logits(ctx, *tokens), logits(clean, *tokens))


@pytest.mark.parametrize("kind", KINDS)
def test_logits_that_are_no_numbers_never_happened(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN among the results of the second ubatch: all of the call is taken back."""
    clean, ctx = context(kind), context(kind, nan_guard=True)
    for c in (clean, ctx):
        logits(c, *PAST)
    before, held = ctx.memory.columns(), contents(ctx)
    get, n_runs = ctx._plans.get, [0]

    class Poisoned:
        def __init__(self, plan: Any) -> None:
            self.plan = plan

        def run(self, inputs: Any) -> Any:
            results = dict(self.plan.run(inputs))
            n_runs[0] += 1
            if n_runs[0] == 2:
                results["logits"] = np.full_like(results["logits"], np.nan)
            return results

    with monkeypatch.context() as patch:
        patch.setattr(ctx._plans, "get", lambda key: Poisoned(get(key)))
        with pytest.raises(e.NotFinite):
            ctx.decode(rows(ctx, *CALL))
    assert ctx.memory.columns() == before and contents(ctx) == held
    for tokens in (CALL, AFTER):
        np.testing.assert_array_equal(logits(ctx, *tokens), logits(clean, *tokens))
