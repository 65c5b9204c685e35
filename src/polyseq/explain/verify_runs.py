"""The ways `verify` runs the same prompts: which cuts, which memories, in which order of rows.

Enters: how long the prompts are. Leaves: runs as values, and the rows of each call. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Run:
    """One way to compute all prompts."""

    name: str
    together: bool  # all prompts in one context, else each alone
    unified: bool
    interleaved: bool  # rows of all prompts in turn, else prompt after prompt
    n_batch: int
    n_ubatch: int


def all_runs(lengths: Sequence[int]) -> tuple[Run, ...]:
    """Pure. Alone in small pieces, then together: at once, in cuts that fit nothing evenly, in turn, row by row."""
    total, longest = sum(lengths), max(lengths)
    small = max(1, min(7, longest // 2))
    runs = [Run("alone, small ubatches", False, False, False, longest, small)]
    for memory, unified in (("streams", False), ("unified", True)):
        runs += [
            Run(f"{memory}, one call", True, unified, False, total, total),
            Run(f"{memory}, small ubatches", True, unified, False, total, small),
            Run(f"{memory}, interleaved", True, unified, True, total, max(1, total // 3)),
            Run(f"{memory}, small calls", True, unified, True, min(total, 2 * small + 3), small),
        ]
    return (*runs, Run("alone, row by row", False, False, False, 1, 1))


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one call."""

    i_prompt: NDArray[np.intp]  # [n]
    pos: NDArray[np.intp]  # [n] which token of its prompt


def calls(run: Run, lengths: Sequence[int]) -> list[Rows]:
    """Pure. All rows in order, in calls of at most n_batch; a run that is not together has one prompt in a call."""
    i_prompt = np.repeat(np.arange(len(lengths)), lengths)
    pos = np.concatenate([np.arange(n) for n in lengths])
    if run.interleaved:
        order = np.lexsort((i_prompt, pos))
        i_prompt, pos = i_prompt[order], pos[order]
    bounds = np.arange(0, len(pos), run.n_batch)
    if not run.together:
        starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        bounds = np.concatenate([np.arange(s, s + n, run.n_batch) for s, n in zip(starts, lengths, strict=True)])
    ends = np.append(bounds[1:], len(pos))
    return [Rows(i_prompt[a:b], pos[a:b]) for a, b in zip(bounds, ends, strict=True)]
