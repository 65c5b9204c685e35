"""What a simulation is asked for: a kind of memory, a cut, the sizes of a context, and what memory already holds.

Enters: settings as a person gives them, most left out. Leaves: the cut, and the sizes in effect for one batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType

import numpy as np

from polyseq.batch import Batch
from polyseq.batch.seqset import MAX_SEQ
from polyseq.context_sizes import DEFAULT_N_BATCH, ContextSizes, effective_sizes
from polyseq.errors import CapabilityError, EmptyBatch
from polyseq.split import Equal, Seq, Simple, Strategy, Whole

MEMORIES = {"unified": "simple", "streams": "equal", "none": "whole"}  # and the cut that each chooses
_LATER = ("window", "recurrent")
STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {"simple": Simple(), "equal": Equal(), "seq": Seq(), "whole": Whole()}
)


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """Settings of a context that has no model. Zero and None take what the batch needs."""

    memory: str = "unified"  # unified | streams | none (an encoder: nothing is kept)
    strategy: str | None = None  # simple | equal | seq | whole; None = what the memory chooses
    n_keep_tail: int = 0  # equal only
    n_ctx: int = 0  # cells in all
    n_seq_max: int = 0
    n_batch: int | None = None
    n_ubatch: int | None = None
    held: tuple[int, ...] = ()  # cells that memory already holds of sequence 0, 1, ...

    def check(self) -> None:
        """Pure. Raises `CapabilityError` for what cannot be simulated or does not go together."""
        known = ", ".join(MEMORIES)
        if self.memory in _LATER:
            raise CapabilityError(f"memory {self.memory} is not there yet; {known} can be planned")
        if self.memory not in MEMORIES:
            raise CapabilityError(f"memory {self.memory!r} is none of {known}")
        if self.strategy is not None and self.strategy not in STRATEGIES:
            raise CapabilityError(f"strategy {self.strategy!r} is none of {', '.join(STRATEGIES)}")
        if self.memory == "streams" and self.strategy_name == "simple":
            raise CapabilityError(
                "streams advance in step, but the simple cut takes rows as they come; "
                "take strategy equal or seq, or memory unified"
            )
        if self.strategy_name == "whole" and self.memory != "none":
            raise CapabilityError("the whole cut is an encoder's: take memory none, or another strategy")
        if self.n_keep_tail < 0 or (self.n_keep_tail and self.strategy_name != "equal"):
            raise CapabilityError(
                f"n_keep_tail {self.n_keep_tail}: the equal cut keeps 0 or more rows of a tail together, "
                f"the {self.strategy_name} cut none"
            )
        if any(n < 0 for n in self.held):
            raise CapabilityError(f"memory cannot hold {min(self.held)} cells of a sequence")
        if self.memory == "none" and any(self.held):
            raise CapabilityError("without a memory nothing is held; leave held out, or take memory unified or streams")

    @property
    def strategy_name(self) -> str:
        return self.strategy or MEMORIES[self.memory]

    @property
    def cut(self) -> Strategy:
        """The strategy, as this memory needs it."""
        return cut_named(self.strategy_name, memory=self.memory, n_keep_tail=self.n_keep_tail)

    def sizes(self, batch: Batch) -> ContextSizes:
        """What is in effect; sizes left out are those that the batch needs.

        Warns once of each clamping. Raises `EmptyBatch`, `BadSeqCount`, `ContextError`.
        """
        if not len(batch):
            raise EmptyBatch("the batch has no rows")
        present = int(batch.seq_ids.max(initial=0)) + 1
        n_seq_max = self.n_seq_max or min(max(present, len(self.held), 1), MAX_SEQ)
        needed = self._needed_cells(batch, min(max(n_seq_max, 1), MAX_SEQ))
        n_ctx = self.n_ctx or max(needed, self.n_batch or 0, self.n_ubatch or 0)
        if not self.n_ctx and self.memory == "streams":
            n_ctx = ceil(n_ctx / n_seq_max) * n_seq_max
        most = max(DEFAULT_N_BATCH, len(batch), self.n_ubatch or 0)
        return effective_sizes(
            n_ctx=n_ctx,
            n_ctx_train=max(n_ctx, 1),
            n_seq_max=n_seq_max,
            n_batch=min(most, max(n_ctx, 1)) if self.n_batch is None else self.n_batch,
            n_ubatch=self.n_ubatch,
            unified=self.memory != "streams",
        )

    def _needed_cells(self, batch: Batch, n_seq_max: int) -> int:
        if self.memory != "streams":
            return sum(self.held) + len(batch)
        ids = batch.seq_ids[(batch.seq_ids >= 0) & (batch.seq_ids < n_seq_max)]
        counts = np.bincount(ids, minlength=n_seq_max)
        counts[: len(self.held)] += np.array(self.held[:n_seq_max], counts.dtype)
        return n_seq_max * max(int(counts.max()), 1)


def cut_named(name: str, *, memory: str, n_keep_tail: int = 0) -> Strategy:
    """Pure. A cut by its name; streams need the equal cut over consecutive ids."""
    if name == "equal":
        return Equal(sequential=memory == "streams", n_keep_tail=n_keep_tail)
    return STRATEGIES[name]
