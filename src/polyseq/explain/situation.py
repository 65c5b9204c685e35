"""What is known of a call that was refused, as the rules of advice read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyseq.batch import Batch, CheckedBatch, Limits, check
from polyseq.explain.changes import Change
from polyseq.memory import KvCache
from polyseq.split import Strategy


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of the call that was refused."""

    batch: Batch | None = None
    memory: KvCache | None = None  # other kinds cannot be tried on copies
    n_ubatch: int | None = None
    strategy: Strategy | None = None
    asked: Mapping[str, Any] | None = None  # the keywords a context was asked for with
    row: int | None = None  # the row whose result was asked for


Rule = Callable[[Any, Situation], tuple[str, list[Change]]]  # an error and its situation -> why, and what would do


def as_checked(batch: Batch, memory: KvCache) -> CheckedBatch:
    """The batch's columns; what a model would say of tokens and content was said before, or is said later."""
    limits = Limits(n_vocab=np.iinfo(np.int32).max, n_seq_max=memory.n_seq_max, n_pos=memory.n_pos, allow_mixed=True)
    return check(batch, limits, memory.ranges)
