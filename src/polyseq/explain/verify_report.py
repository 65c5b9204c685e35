"""What `verify` found: every run against the solo run, and whether the differences look like rounding or a defect.

Enters: distances of output rows, run by run. Leaves: a `Report` with a verdict in one sentence. How it is judged is
told at `judge` and in docs/verify.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyseq.explain.verify_runs import Run

Verdict = Literal["equal", "rounding", "unclear", "defect"]

TOLERANCE = 1e-3  # of a row's spread: 100 times what float32 does in a model of 30 layers
FLOOR = 1e-5  # of a row's spread: float32 explains this much anywhere
OUTLIER = 100.0  # times the usual distance: rounding does not single out one row


@dataclass(frozen=True, slots=True)
class Distances:
    """One run against solo: a line for each compared row, in the order in which the run computed them."""

    run: Run
    n_calls: int
    n_ubatches: int
    i_prompt: NDArray[np.intp]  # [n]
    pos: NDArray[np.intp]  # [n]
    i_call: NDArray[np.intp]  # [n]
    i_ubatch: NDArray[np.intp]  # [n] in its call
    i_row: NDArray[np.intp]  # [n] in its ubatch
    n_tokens: NDArray[np.intp]  # [n] rows of its ubatch
    max_abs: NDArray[np.float64]  # [n] largest difference of a logit, inf where one is not finite
    relative: NDArray[np.float64]  # [n] the same over the spread (standard deviation) of the solo row's logits
    kl: NDArray[np.float64]  # [n] KL(solo || run) in nats
    argmax_changed: NDArray[np.bool_]  # [n]
    in_order: NDArray[np.bool_]  # [n] cells of its sequence lie in the order of their positions, as in solo


@dataclass(frozen=True, slots=True)
class Parting:
    """The first row, in order of computation, that lies beyond the limit."""

    i_call: int
    i_ubatch: int
    i_row: int  # in the ubatch
    n_tokens: int  # rows of that ubatch
    i_prompt: int
    pos: int
    max_abs: float
    relative: float
    kl: float

    def __str__(self) -> str:
        return (
            f"call {self.i_call}, ubatch {self.i_ubatch}, row {self.i_row} of {self.n_tokens} "
            f"(prompt {self.i_prompt}, position {self.pos})"
        )


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run in numbers."""

    run: Run
    n_calls: int
    n_ubatches: int
    n_rows: int  # compared
    n_beyond: int  # beyond the limit, or not the same bits where these are owed
    n_unclear: int  # beyond the limit, where rounding may lead there
    max_abs: float
    relative: float
    kl: float
    n_argmax_changed: int
    parting: Parting | None


@dataclass(frozen=True, slots=True)
class Report:
    """All runs, and what they say together."""

    n_prompts: int
    n_rows: int  # of all prompts
    usual: float  # median of the relative distances that are not zero
    limit: float  # relative distance beyond which rounding is no explanation
    same_bits: bool  # the backend owes the same bits to rows whose cells are in order
    results: tuple[RunResult, ...]

    @property
    def verdict(self) -> Verdict:
        """ "equal": not a bit differs; "defect": a row lies beyond the limit, or has not the bits that it is owed;
        "unclear": one lies beyond the limit where rounding may lead."""
        if any(r.n_beyond for r in self.results):
            return "defect"
        if any(r.n_unclear for r in self.results):
            return "unclear"
        return "rounding" if any(r.max_abs for r in self.results) else "equal"

    @property
    def text(self) -> str:
        """The verdict in one sentence."""
        if self.verdict == "equal":
            return "All runs equal the solo run to the last bit."
        worst = max(self.results, key=lambda r: r.relative)
        if self.verdict == "rounding":
            return (
                f"The differences look like rounding: at most {worst.relative:.1e} of a row's spread "
                f"({worst.run.name}), {self.usual:.1e} as a rule, and nothing beyond {self.limit:.1e}."
            )
        if self.verdict == "unclear":
            return (
                f"It cannot be told: '{worst.run.name}' differs by up to {worst.relative:.1e} of a row's spread, in "
                "rows whose window cells were taken again: their sums run in another order, which rounding to few bits "
                "makes much of. --backend reference can tell."
            )
        bad = [r for r in self.results if r.parting is not None]
        first = bad[0]
        owed = "do not give the bits that are owed" if self.same_bits else "leave the limit"
        limit = "" if self.same_bits else f" of {self.limit:.1e} of a row's spread"
        return (
            f"The differences look like a defect: {len(bad)} of {len(self.results)} runs {owed}{limit}; "
            f"'{first.run.name}' parts from solo at {first.parting}, its largest difference is {first.relative:.1e} "
            "of a row's spread."
        )

    def to_json(self) -> dict[str, Any]:
        """Pure. Plain lists and numbers; a distance that is not finite is null."""
        return {"verdict": self.verdict, "text": self.text, **_finite(asdict(self))}


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity."""
    return {name: _finite_value(value) for name, value in values.items()}


def _finite_value(value: Any) -> Any:
    if isinstance(value, dict):
        return _finite(value)
    if isinstance(value, tuple):
        return [_finite_value(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def judge(
    runs: Sequence[Distances], *, n_prompts: int, n_rows: int, tolerance: float = TOLERANCE, same_bits: bool = False
) -> Report:
    """Pure. Rounding or defect, for every row of every run.

    With `same_bits` (see `Backend`) a row whose cells are in order must equal solo's: any difference is a defect.
    The others' sums run in another order, and such a backend rounds to few bits: where one of these falls to the other
    side, all that follows differs by as much as that rounding does, so that size proves nothing. Beyond `tolerance` it
    is unclear, and a defect only where a value is not finite.

    Else a distance is the largest logit difference over the spread of the row's logits. Rounding depends on the shape
    of the sums, so it touches all rows alike; a wrong mask, position or row touches some, and by far more. A row lies
    beyond the limit if its distance exceeds `tolerance`, or if it exceeds both `FLOOR` and `OUTLIER` times the usual
    distance: the median over all rows and runs that differ at all.
    """
    relative = np.concatenate([d.relative for d in runs])
    differing = relative[relative > 0]
    usual = float(np.median(differing)) if len(differing) else 0.0
    limit = tolerance if same_bits else min(tolerance, max(FLOOR, OUTLIER * usual))
    return Report(n_prompts, n_rows, usual, limit, same_bits, tuple(_result(d, limit, same_bits) for d in runs))


def _result(d: Distances, limit: float, same_bits: bool) -> RunResult:
    beyond = d.relative > limit
    unclear = np.zeros_like(beyond)
    if same_bits:
        unclear = beyond & ~d.in_order & np.isfinite(d.relative)
        beyond = np.where(d.in_order, d.relative > 0, beyond & ~unclear)
    return RunResult(
        run=d.run,
        n_calls=d.n_calls,
        n_ubatches=d.n_ubatches,
        n_rows=len(beyond),
        n_beyond=int(beyond.sum()),
        n_unclear=int(unclear.sum()),
        max_abs=float(d.max_abs.max()),
        relative=float(d.relative.max()),
        kl=float(d.kl.max()),
        n_argmax_changed=int(d.argmax_changed.sum()),
        parting=_parting(d, int(beyond.argmax())) if beyond.any() else None,
    )


def _parting(d: Distances, i: int) -> Parting:
    return Parting(
        i_call=int(d.i_call[i]),
        i_ubatch=int(d.i_ubatch[i]),
        i_row=int(d.i_row[i]),
        n_tokens=int(d.n_tokens[i]),
        i_prompt=int(d.i_prompt[i]),
        pos=int(d.pos[i]),
        max_abs=float(d.max_abs[i]),
        relative=float(d.relative[i]),
        kl=float(d.kl[i]),
    )
