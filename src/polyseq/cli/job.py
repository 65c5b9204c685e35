"""What `generate` has to do once everything is read, checked and loaded.

Enters: the command's parts. Leaves: one value that the run and its summary read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.context import Context
from polyseq.model import Model
from polyseq.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Job:
    """Prompts to be answered, all at once."""

    model: Model
    ctx: Context
    prompts: list[str]  # as typed
    tokens: list[NDArray[np.int32]]  # [n_prompt] i32 for each
    params: SamplingParams  # without a seed, each prompt gets one of its own
    max_tokens: int | None
    chat: bool


def needed_cells(prompts: Sequence[NDArray[np.int32]], max_tokens: int | None, n_seqs: int, *, unified: bool) -> int:
    """Pure. Cells that let the `n_seqs` longest prompts be answered at once; 0 (the model's) without a limit."""
    if max_tokens is None:
        return 0
    longest = sorted((len(p) + max_tokens for p in prompts), reverse=True)[:n_seqs]
    return sum(longest) if unified else n_seqs * longest[0]
