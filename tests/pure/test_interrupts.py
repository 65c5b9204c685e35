"""What ends a call from outside - another thread, a signal, no memory - for every kind of memory and on both backends.

`test_atomic.py` fails computations; here the call is stopped as programs are stopped.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from polyseq import Context
from polyseq import errors as e
from polyseq.memory import window_pair
from polyseq.memory.cells import Cells
from polyseq.memory.states import States
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", range(8))
def test_an_interrupt_while_what_was_tried_is_taken_back_leaves_every_byte(
    kind: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Placing writes ubatch after ubatch and takes all of it back: after `at` lines of that, Ctrl-C."""
    ctx = context(kind)
    logits(ctx, *PAST)
    before = ctx.memory.columns()
    left = [at]

    def interrupting(fn: Callable[..., None]) -> Callable[..., None]:
        def undo(self: Any, *args: Any) -> None:
            if left[0] >= 0:
                done, left[0] = 0, -1

                def counted(frame: Any, event: str, arg: Any) -> Any:
                    nonlocal done
                    done += event == "line"
                    if done > at:
                        sys.settrace(None)
                        raise KeyboardInterrupt
                    return counted

                old = sys.gettrace()
                sys.settrace(lambda frame, event, arg: counted if frame.f_code is fn.__code__ else None)
                try:
                    fn(self, *args)
                finally:
                    sys.settrace(old)
                raise KeyboardInterrupt  # it was shorter than that
            fn(self, *args)

        return undo

    with monkeypatch.context() as patch:
        for owner in (Cells, States):
            patch.setattr(owner, "undo", interrupting(owner.undo))
        with pytest.raises(KeyboardInterrupt):
            ctx.decode(rows(ctx, *CALL))
    assert ctx.memory.columns() == before
    ctx.memory.check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["mark", "keeping", "undo", "put_back"])
@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_of_the_way_back_itself_leaves_sound_sequences(
    kind: str, what: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two ubatches, as what was finished is made to stay; and again while a call is being taken back."""
    ctx = context(kind, on_error="keep_finished")
    logits(ctx, *PAST)
    armed = False

    def interrupted(fn: Callable[..., Any]) -> Callable[..., Any]:
        def once(*args: Any) -> Any:
            nonlocal armed
            now, armed = armed, False
            if now and not after:
                raise KeyboardInterrupt
            found = fn(*args)
            if now:
                raise KeyboardInterrupt
            return found

        return once

    def arm() -> None:
        nonlocal armed
        armed = True
        if what in ("undo", "put_back"):
            raise MemoryError("injected")

    with monkeypatch.context() as patch:
        before_ubatch(ctx, 1 if what in ("undo", "put_back") else 0, arm, patch)
        if what == "put_back":
            keeping = ctx._cache.keeping

            def kept() -> Any:
                made = keeping()
                made.put_back = interrupted(made.put_back)  # type: ignore[method-assign]
                return made

            patch.setattr(ctx._cache, "keeping", kept)
        else:
            owner = ctx._cache if what == "keeping" else ctx.memory
            patch.setattr(owner, what, interrupted(getattr(owner, what)))
        with pytest.raises(KeyboardInterrupt):
            ctx.decode(rows(ctx, *CALL))
    assert not armed
    ctx.memory.check()
    clean = context(kind)
    logits(clean, *PAST)
    wanted = np.split(logits(clean, *CALL), [len(CALL[0])])
    n_left = [len(p) + len(c) - 1 - ctx.memory.pos_max(s) for s, (p, c) in enumerate(zip(PAST, CALL, strict=True))]
    found = logits(ctx, *[call[len(call) - n :] for call, n in zip(CALL, n_left, strict=True)])
    rest = np.concatenate([rows_of[len(rows_of) - n :] for rows_of, n in zip(wanted, n_left, strict=True)])
    np.testing.assert_allclose(found, rest, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "recurrent"])  # that is never full
def test_a_call_without_room_never_happened(kind: str) -> None:
    """Most of it would have fitted, and in a window taken cells that hold something."""
    clean, ctx = context(kind, n_ctx=48, n_batch=48), context(kind, n_ctx=48, n_batch=48)
    for c in (clean, ctx):
        logits(c, *PAST)
    before, held = ctx.memory.columns(), contents(ctx)
    n_left = 48 - len(PAST[0]) - len(PAST[1]) if KINDS[kind][1] else 24 - len(PAST[0])
    with pytest.raises(e.NoSlot):
        logits(ctx, [7] * (n_left + 1))
    assert ctx.memory.columns() == before and contents(ctx) == held
    ctx.memory.check()
    for tokens in (CALL, AFTER):
        np.testing.assert_array_equal(logits(ctx, *tokens), logits(clean, *tokens))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_interrupt_takes_back_the_ubatch_under_way_where_finished_ones_stay(
    kind: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised as it is: a program that is told to stop does not go on with a part."""
    ctx = context(kind, on_error="keep_finished")
    logits(ctx, *PAST)
    before = ctx.memory.columns(), contents(ctx)
    call = rows(ctx, *CALL)
    ubatches = ctx.plan(call).ubatches

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        before_ubatch(ctx, at, interrupt, patch)
        with pytest.raises(KeyboardInterrupt):
            ctx.decode(call)
    if at == 0:
        assert (ctx.memory.columns(), contents(ctx)) == before
    for s, past in enumerate(PAST):
        done = sum(int((u.first_seq == s).sum()) for u in ubatches[:at])
        assert ctx.memory.pos_max(s) == len(past) - 1 + done
    ctx.memory.check()
    clean = context(kind)
    logits(clean, *PAST)
    wanted = np.split(logits(clean, *CALL), [len(CALL[0])])
    n_left = [
        len(past) + len(call) - 1 - ctx.memory.pos_max(s) for s, (past, call) in enumerate(zip(PAST, CALL, strict=True))
    ]
    found = logits(ctx, *[call[len(call) - n :] for call, n in zip(CALL, n_left, strict=True)])
    rest = np.concatenate([rows_of[len(rows_of) - n :] for rows_of, n in zip(wanted, n_left, strict=True)])
    np.testing.assert_allclose(found, rest, rtol=0, atol=1e-4)
