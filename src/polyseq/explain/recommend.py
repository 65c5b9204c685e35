"""Which sizes for a stated load: every candidate is simulated, the goal chooses, and the choice has a reason.

Enters: a `Load`, a goal, a cost model. Leaves: a `Recommendation`: all outcomes, the chosen one, why. Needs no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from polyseq.batch.seqset import MAX_SEQ
from polyseq.errors import ContextError
from polyseq.explain.cost import ByteModel, CostModel
from polyseq.explain.load import Choice, Load, Outcome, simulate_load

Goal = Literal["throughput", "stall", "memory"]
GOALS: tuple[Goal, ...] = get_args(Goal)
AS_FAST = 0.97  # what counts as as fast as the fastest: less than a machine's own unrest
FAST_ENOUGH = 0.7  # where something else is the goal
_LEAST = 32  # rows: below, an ubatch costs hardly less
_MOST = 2048


@dataclass(frozen=True, slots=True)
class Recommendation:
    """All that was simulated, best first."""

    load: Load
    goal: Goal
    outcomes: tuple[Outcome, ...]
    reason: str

    @property
    def best(self) -> Outcome:
        return self.outcomes[0]


def recommend(
    load: Load,
    goal: Goal,
    *,
    cost: CostModel,
    memory_use: ByteModel,
    kv_bytes_per_cell: int,
    most_rows: int,
    packed: bool,
    progress: Callable[[int, int], None] | None = None,
) -> Recommendation:
    """Pure. No candidate has an ubatch above `most_rows`, the largest that was measured. packed: see `simulate_load`.

    throughput: among those within 3 % of the most tokens per second, the least memory, then the shortest stall.
    stall: the shortest stall, and memory: the least memory, of those that give at least 70 % of the most tokens per
    second; what else is equal goes to the faster. Raises `ContextError` for a goal or load that cannot be.
    """
    if goal not in GOALS:
        raise ContextError(f"goal {goal!r} is none of {', '.join(GOALS)}")
    choices = candidates(load, most_rows=most_rows)
    outcomes = []
    for i, choice in enumerate(choices):
        if progress is not None:
            progress(i, len(choices))
        outcomes.append(simulate_load(load, choice, cost, memory_use, kv_bytes_per_cell, packed=packed))
    fastest = max(o.tokens_per_s for o in outcomes)
    share = AS_FAST if goal == "throughput" else FAST_ENOUGH
    able = sorted((o for o in outcomes if o.tokens_per_s >= share * fastest), key=lambda o: _order(o, goal))
    others = sorted((o for o in outcomes if o.tokens_per_s < share * fastest), key=lambda o: -o.tokens_per_s)
    ordered = (*able, *others)
    return Recommendation(load, goal, ordered, _reason(ordered, len(able), goal, fastest))


def candidates(load: Load, *, most_rows: int) -> tuple[Choice, ...]:
    """Pure. Powers of two, from what covers all users to what covers all their prompts at once."""
    if load.users > MAX_SEQ:
        raise ContextError(f"{load.users} users are more than the {MAX_SEQ} sequences of a context")
    found = []
    for n_seq_max in sorted({load.users, -(-load.users // 2)}):
        n_batch = max(_LEAST, _power_above(n_seq_max))
        most = min(max(n_batch, _power_above(n_seq_max * load.prompt)), _MOST)
        while n_batch <= most:
            ubatches = {min(n, n_batch, most_rows) for n in (_LEAST, 4 * _LEAST, 16 * _LEAST, n_batch)}
            for n_ubatch in sorted(ubatches):
                found += [Choice(n_seq_max, n_batch, n_ubatch, unified) for unified in (True, False)]
            n_batch *= 2
    return tuple(found)


def _power_above(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _order(o: Outcome, goal: Goal) -> tuple[float, ...]:
    """Seconds are compared as printed, so that no choice rests on a difference that nobody could measure."""
    stall, rate = float(f"{o.stall_s:.2g}"), -float(f"{o.tokens_per_s:.2g}")
    size = float(f"{o.n_bytes:.2g}")
    smaller = (o.choice.n_ubatch, o.choice.n_batch, not o.choice.unified)
    order = {
        "throughput": (size, stall, rate),
        "stall": (stall, rate, size),
        "memory": (size, rate, stall),
    }
    return (*order[goal], -o.tokens_per_s, *smaller)


def _reason(ordered: Sequence[Outcome], n_able: int, goal: Goal, fastest: float) -> str:
    best = ordered[0]
    share = f"{best.tokens_per_s / fastest:.0%} of the most tokens per second"
    of = f"of the {n_able} of {len(ordered)} candidates"
    if goal == "throughput":
        return f"{share}, and the least memory {of} within {1 - AS_FAST:.0%} of it"
    what = "the shortest stall" if goal == "stall" else "the least memory"
    return f"{what} {of} that give {FAST_ENOUGH:.0%} of the most tokens per second or more; it gives {share}"
