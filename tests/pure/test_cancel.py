"""Cancelling a request: its cells are free, its company notices nothing, on every kind of memory."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from polyseq import Batch, Context, Model
from polyseq.engine import Engine, Event
from polyseq.errors import UnknownRequest
from polyseq.memory import window_pair
from polyseq.sampling import SamplingParams
from test_atomic import KINDS
from test_engine import assert_empty, sorted_out, text
from test_engine_kinds import greedy, metadata

__all__ = ["metadata"]  # a fixture
GREEDY = SamplingParams(temperature=0)
N_TOKENS = 6


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(window_pair, "WINDOW_PAD", 1)
    return str(request.param)


@pytest.fixture
def model(kind: str, metadata: dict[str, object]) -> Model:
    tiny = KINDS[kind][0]
    return Model(tiny.architecture, tiny.weights, metadata)


def engine_on(model: Model, kind: str, **options: Any) -> tuple[Context, Engine]:
    ctx = Context(model, n_ctx=120, n_seq_max=2, n_batch=16, n_ubatch=8, unified=KINDS[kind][1], backend="reference")
    return ctx, Engine(ctx, model, **options)


def prompt(n: int, seed: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return text(n, seed) % 60


def steps_until_finished(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while not engine.finished:
        events += engine.step()
    return events


@pytest.mark.parametrize("n_steps", [0, 1, 2, 4])
def test_a_cancelled_request_frees_its_cells_and_the_others_go_on(kind: str, model: Model, n_steps: int) -> None:
    """0: all wait; 1: the long prompt is being read; 2 and 4: it answers. Then somebody new takes its place."""
    ctx, engine = engine_on(model, kind)
    prompts = [prompt(4, 1), prompt(20, 2), prompt(5, 3)]
    for tokens in prompts[:2]:
        engine.submit(tokens, params=GREEDY, max_tokens=N_TOKENS)
    events = [event for _ in range(n_steps) for event in engine.step()]
    n_given = sum(event.i_prompt == 1 for event in events)
    assert n_given == max(0, n_steps - 1)
    engine.cancel(1)
    assert ctx.memory.pos_max(1) == -1, "free on return"
    engine.cancel(1)
    engine.submit(prompts[2], params=GREEDY, max_tokens=N_TOKENS)
    events += steps_until_finished(engine)
    said, ended = sorted_out(events)
    assert (ended[1].reason, ended[1].n_gen, ended[1].n_prompt) == ("cancelled", n_given, 20)
    assert said[1] == greedy(model, prompts[1], N_TOKENS)[:n_given]
    for i in (0, 2):
        assert said[i] == greedy(model, prompts[i], N_TOKENS)
    engine.cancel(0)
    engine.cancel(1)
    assert engine.finished and engine.step() == [], "what is over stays over"
    assert_empty(ctx)
    ctx.memory.check()


# F29: the one that runs is not stopped by it.
def test_cancelling_one_that_waits_leaves_the_one_that_runs(kind: str, model: Model) -> None:
    ctx, engine = engine_on(model, kind)
    prompts = [prompt(5, seed) for seed in range(4)]
    for tokens in prompts:
        engine.submit(tokens, params=GREEDY, max_tokens=N_TOKENS)
    events = engine.step()
    held = ctx.memory.columns()
    engine.cancel(3)
    assert ctx.memory.columns() == held
    said, ended = sorted_out(events + steps_until_finished(engine))
    assert [ended[i].reason for i in range(4)] == ["length"] * 3 + ["cancelled"] and ended[3].n_gen == 0
    assert [said[i] for i in range(3)] == [greedy(model, tokens, N_TOKENS) for tokens in prompts[:3]]


@pytest.mark.parametrize("who", [0, 1, 2, 3])
@pytest.mark.parametrize("n_steps", [1, 2, 3])
def test_a_shared_prefix_outlives_whoever_is_cancelled(kind: str, model: Model, who: int, n_steps: int) -> None:
    """Whether it is being read, held, or about to be taken over."""
    shared = prompt(18, 9)
    prompts = [np.concatenate((shared, prompt(3, seed))) for seed in range(4)]
    ctx, engine = engine_on(model, kind, prefix=shared)
    for tokens in prompts:
        engine.submit(tokens, params=GREEDY, max_tokens=N_TOKENS)
    events = [event for _ in range(n_steps) for event in engine.step()]
    engine.cancel(who)
    said, ended = sorted_out(events + steps_until_finished(engine))
    for i, tokens in enumerate(prompts):
        assert ended[i].reason == ("cancelled" if i == who else "length")
        assert said[i] == greedy(model, tokens, N_TOKENS)[: len(said[i])]
    assert_empty(ctx)
    ctx.memory.check()


def test_nobody_keeps_a_prefix_for_requests_that_were_cancelled(kind: str, model: Model) -> None:
    shared = prompt(8, 9)
    ctx, engine = engine_on(model, kind, prefix=shared)
    for seed in range(3):
        engine.submit(np.concatenate((shared, prompt(3, seed))), params=GREEDY, max_tokens=N_TOKENS)
    engine.step()
    engine.step()
    for i in range(3):
        engine.cancel(i)
    assert_empty(ctx)


@pytest.mark.parametrize("by", ["another thread", "the thread that steps"])
def test_while_a_step_runs_it_is_cancelled_at_its_end(kind: str, model: Model, by: str) -> None:
    def watch(batch: Batch) -> None:
        if len(asked) == 3:
            if by == "another thread":
                thread = threading.Thread(target=engine.cancel, args=(0,))
                thread.start()
                thread.join()
            else:
                engine.cancel(0)
            assert ctx.memory.pos_max(0) >= 0, "the step goes on"
        asked.append(len(batch))

    asked: list[int] = []
    ctx, engine = engine_on(model, kind, watch=watch)
    prompts = [prompt(4, 1), prompt(7, 2)]
    for tokens in prompts:
        engine.submit(tokens, params=GREEDY, max_tokens=N_TOKENS)
    events = [event for _ in range(4) for event in engine.step()]
    assert ctx.memory.pos_max(0) == -1
    said, ended = sorted_out(events + steps_until_finished(engine))
    assert ended[0].reason == "cancelled" and said[0] == greedy(model, prompts[0], N_TOKENS)[:4]
    assert said[1] == greedy(model, prompts[1], N_TOKENS)


def test_a_step_that_fails_can_still_be_followed_by_a_cancel(kind: str, model: Model) -> None:
    ctx, engine = engine_on(model, kind)
    engine.submit(prompt(5, 1), params=GREEDY)
    engine.step()
    ctx._compute.ubatch = lambda *_: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(ZeroDivisionError):
        engine.step()
    engine.cancel(0)
    assert_empty(ctx)
    assert [event.reason for event in engine.step()] == ["cancelled"]  # type: ignore[union-attr]


@pytest.mark.parametrize("i_prompt", [-1, 2, 10**9, "0", None, 1.0])
def test_a_request_that_never_was_cannot_be_cancelled(i_prompt: Any, metadata: dict[str, object]) -> None:
    tiny = KINDS["unified"][0]
    _, engine = engine_on(Model(tiny.architecture, tiny.weights, metadata), "unified")
    for seed in range(2):
        engine.submit(prompt(3, seed), params=GREEDY)
    with pytest.raises(UnknownRequest, match=r"there is no request .*: 2 were submitted"):
        engine.cancel(i_prompt)
