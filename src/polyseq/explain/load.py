"""A load of users on one context, step by step without computing: what it would give, and what it would take.

Enters: a `Load`, the sizes of a context, a cost model. Leaves: an `Outcome`. Batches are made as the engine makes them,
cut and placed by the real memory; only the time of a call is the cost model's word. Needs no model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import ContextError
from polyseq.explain.advance import planned, rows_for
from polyseq.explain.cost import ByteModel, CostModel
from polyseq.explain.shapes import UbatchShape, apply_plan
from polyseq.memory import KvCache


@dataclass(frozen=True, slots=True)
class Load:
    """Users who each ask, read the answer and ask again at once."""

    users: int
    prompt: int  # tokens of each prompt
    answer: int  # tokens of each answer, on average: they vary by a quarter, so that users fall out of step
    rounds: int = 2  # prompts of each user

    def __post_init__(self) -> None:
        for name in ("users", "prompt", "answer", "rounds"):
            if getattr(self, name) < 1:
                raise ContextError(f"a load has {name} of 1 or more, not {getattr(self, name)}")

    def answer_of(self, user: int, i_round: int) -> int:
        """Pure. Between three and five quarters of `answer`, spread evenly over users."""
        place = (user * 5 + i_round * 3) % 8  # any order that is not the users' own
        return max(1, round(self.answer * (0.75 + place / 14)))

    @property
    def longest(self) -> int:
        """Cells of the longest request."""
        return self.prompt + max(1, round(self.answer * 1.25))


@dataclass(frozen=True, slots=True)
class Choice:
    """The sizes that are to be chosen."""

    n_seq_max: int
    n_batch: int
    n_ubatch: int
    unified: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a load would come to. Seconds are predicted, and are those of `decode` alone."""

    choice: Choice
    n_ctx: int
    tokens_per_s: float  # of answers
    stall_s: float  # the longest that a decoding user waits for the next token
    first_token_s: float  # the longest from a prompt to its first token
    n_bytes: int  # at most: cache, buffers and results; not the weights
    n_calls: int
    n_ubatches: int


@dataclass(slots=True)
class _Request:
    user: int
    i_round: int
    asked_s: float
    prompt_left: int
    answer_left: int
    seq: int = -1
    n_gen: int = 0


@dataclass(slots=True)
class _State:
    """A running simulation."""

    load: Load
    choice: Choice
    cost: CostModel
    memory_use: ByteModel
    cells: KvCache
    free: list[int]
    waiting: deque[_Request]
    active: list[_Request] = field(default_factory=list)
    now_s: float = 0.0
    stall_s: float = 0.0
    first_token_s: float = 0.0
    n_tokens: int = 0
    n_calls: int = 0
    n_ubatches: int = 0
    call_bytes: int = 0


def simulate_load(
    load: Load, choice: Choice, cost: CostModel, memory_use: ByteModel, kv_bytes_per_cell: int, *, packed: bool
) -> Outcome:
    """Pure. Runs the load to its end; `packed`: the backend takes rows of streams as they come, in no rectangles.

    Raises `ContextError` for a choice with `n_batch` below `n_seq_max`.
    """
    if not 1 <= choice.n_ubatch <= choice.n_batch or choice.n_seq_max > choice.n_batch:
        raise ContextError(f"a load needs n_ubatch and n_seq_max of at most n_batch {choice.n_batch}")
    n_ctx = choice.n_seq_max * load.longest
    state = _State(
        load,
        choice,
        cost,
        memory_use,
        KvCache(
            n_cells=n_ctx if choice.unified else load.longest,
            n_seq_max=choice.n_seq_max,
            unified=choice.unified,
            packed=packed,
        ),
        free=list(range(choice.n_seq_max))[::-1],
        waiting=deque(_ask(load, user, 0, 0.0) for user in range(load.users)),
    )
    while state.waiting or state.active:
        while state.waiting and state.free:
            request = state.waiting.popleft()
            request.seq = state.free.pop()
            state.active.append(request)
        if all(r.prompt_left == 0 for r in state.active):
            _decode_many(state)
        else:
            _mixed_step(state)
    return Outcome(
        choice=choice,
        n_ctx=n_ctx,
        tokens_per_s=state.n_tokens / state.now_s if state.now_s else float("inf"),
        stall_s=state.stall_s,
        first_token_s=state.first_token_s,
        n_bytes=n_ctx * kv_bytes_per_cell + state.call_bytes,
        n_calls=state.n_calls,
        n_ubatches=state.n_ubatches,
    )


def _ask(load: Load, user: int, i_round: int, now_s: float) -> _Request:
    return _Request(user, i_round, now_s, load.prompt, load.answer_of(user, i_round))


def _mixed_step(state: _State) -> None:
    """Changes the state: one call; decoding rows first, prompts fill the rest."""
    decoding = sorted((r for r in state.active if r.prompt_left == 0), key=lambda r: r.seq)
    rows = [(r, 1) for r in decoding]
    room = state.choice.n_batch - len(rows)
    for request in state.active:
        if request.prompt_left and room:
            n = min(request.prompt_left, room)
            rows.append((request, n))
            room -= n
    seqs = np.repeat([r.seq for r, _ in rows], [n for _, n in rows])
    output = np.zeros(len(seqs), np.bool_)
    last = np.cumsum([n for _, n in rows]) - 1
    output[last] = [n == r.prompt_left or r.prompt_left == 0 for r, n in rows]
    seconds = _call(state, seqs, output)
    _passed(state, 1, seconds, stalled=bool(decoding))
    for request, n in rows:
        if request.prompt_left:
            request.prompt_left -= n
            if request.prompt_left:
                continue
            state.first_token_s = max(state.first_token_s, state.now_s - request.asked_s)
        _answered(state, request, 1)


def _decode_many(state: _State) -> None:
    """Changes the state: calls of one row each until somebody ends.

    Only the first and the last are costed: in between only cells grow, and with them the cost, evenly.
    """
    active = sorted(state.active, key=lambda r: r.seq)
    n_steps = min(r.answer_left for r in active)
    seqs = np.array([r.seq for r in active])
    output = np.ones(len(seqs), np.bool_)
    before = state.n_ubatches
    first = last = _call(state, seqs, output)
    n_between = n_steps - 2
    if n_between > 0:
        n_rows = n_between * len(seqs)
        _place(state.cells, np.tile(seqs, n_between), np.zeros(n_rows, np.bool_), n_rows)
        state.n_calls += n_between
        state.n_ubatches += n_between * (state.n_ubatches - before)
    if n_steps > 1:
        last = _call(state, seqs, output)
    _passed(state, n_steps, (first + last) / 2, stalled=False)
    state.stall_s = max(state.stall_s, first, last)
    for request in active:
        _answered(state, request, n_steps)


def _call(state: _State, seqs: NDArray[np.intp], output: NDArray[np.bool_]) -> float:
    """Changes cells and counts: one call of these rows; its seconds."""
    shapes = _place(state.cells, seqs, output, state.choice.n_ubatch)
    state.n_calls += 1
    state.n_ubatches += len(shapes)
    state.call_bytes = max(state.call_bytes, state.memory_use.n_bytes(*shapes))
    return state.cost.seconds(*shapes)


def _place(cells: KvCache, seqs: NDArray[np.intp], output: NDArray[np.bool_], n_ubatch: int) -> Sequence[UbatchShape]:
    """Changes the cells. The shapes of the ubatches."""
    return apply_plan(cells, planned(cells, rows_for(cells, seqs, output), n_ubatch))


def _passed(state: _State, n_steps: int, seconds: float, *, stalled: bool) -> None:
    state.now_s += n_steps * seconds
    if stalled:
        state.stall_s = max(state.stall_s, seconds)


def _answered(state: _State, request: _Request, n: int) -> None:
    """Changes the state: n more tokens of an answer; at its end the user asks again."""
    request.answer_left -= n
    request.n_gen += n
    state.n_tokens += n
    if request.answer_left:
        return
    state.active.remove(request)
    state.cells.rm(request.seq)
    state.free.append(request.seq)
    if request.i_round + 1 < state.load.rounds:
        state.waiting.append(_ask(state.load, request.user, request.i_round + 1, state.now_s))
