"""What is known of a call that was refused, as the rules of advice read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyseq.batch import Batch, CheckedBatch, Limits, check
from polyseq.errors import BatchError
from polyseq.explain.changes import Change
from polyseq.memory import Trial


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of the call that was refused."""

    batch: Batch | None = None
    trial: Trial | None = None  # the memory, to be tried on copies
    asked: Mapping[str, Any] | None = None  # the keywords a context was asked for with

    @property
    def checked(self) -> CheckedBatch | None:
        """The batch's columns; what a model would say of tokens and content was said before, or is said later. None
        where it is refused for another reason, such as a memory that has gone on since.
        """
        if self.batch is None or self.trial is None:
            return None
        memory = self.trial.memory
        n_vocab = np.iinfo(np.int32).max
        try:
            return check(
                self.batch,
                Limits(n_vocab=n_vocab, n_seq_max=memory.n_seq_max, n_pos=memory.n_pos, allow_mixed=True),
                memory.ranges,
            )
        except BatchError:
            return None


Rule = Callable[[Any, Situation], tuple[str, list[Change]]]  # an error and its situation -> why, and what would do
