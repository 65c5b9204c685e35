"""Steps 2 to 4 without a model: check, cut and place one batch, and keep what came of it.

Enters: a `Batch` and a `PlanSpec`. Leaves: a `Simulation`, or the error that a context would raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from polyseq.batch import Batch, CheckedBatch, Limits, check
from polyseq.context_sizes import ContextSizes
from polyseq.errors import ContextError, PolyseqError
from polyseq.explain.advance import advance, planned
from polyseq.explain.spec import PlanSpec
from polyseq.memory import Memory, Refused, Slot, make_memory
from polyseq.split import Equal, Ubatch

_ANY_TOKEN = 2**31 - 1  # no model, so no vocabulary


@dataclass(frozen=True, slots=True)
class Simulation:
    """A batch cut and placed, nothing computed."""

    spec: PlanSpec
    sizes: ContextSizes
    checked: CheckedBatch
    ubatches: tuple[Ubatch, ...]
    slots: tuple[Slot, ...]  # one per ubatch, of the part that keeps most; none where no token is kept

    @property
    def n_tokens(self) -> int:
        return self.checked.n_tokens

    @property
    def block_tokens(self) -> NDArray[np.intp]:
        """[n_ubatches] rows of each ubatch."""
        return np.array([u.n_tokens for u in self.ubatches], np.intp)

    @property
    def fill(self) -> float:
        """Rows computed, of all that the ubatches could have held: 0 to 1."""
        return self.n_tokens / (len(self.ubatches) * self.sizes.n_ubatch)


def simulate(batch: Batch, spec: PlanSpec) -> Simulation:
    """Pure. What a context of these settings would make of the batch.

    Raises what `Context.decode` raises before it computes (`BatchError`, `SplitError`, `NoSlot`), and
    `CapabilityError` or `ContextError` for settings that cannot be.
    """
    spec.check()
    sizes = spec.sizes(batch)
    limits = Limits(n_vocab=_ANY_TOKEN, n_seq_max=sizes.n_seq_max, n_batch=sizes.n_batch)
    settings = spec.memory_settings(sizes)
    memory = make_memory(replace(settings, strategy=None))
    _fill(memory, spec.held)
    memory.strategy = spec.cut
    try:
        checked = check(batch, limits, memory.ranges)
        if not sizes.unified:
            Equal(sequential=True).check(checked, sizes.n_ubatch)  # whatever the cut, streams share no row
        plan = planned(memory, checked, sizes.n_ubatch)
    except PolyseqError as error:
        Refused(batch, memory, settings).attach(error)
        raise
    slots = tuple(slot.kv for slot in plan.slots if slot.kv is not None)
    return Simulation(spec, sizes, checked, plan.ubatches, slots)


def _fill(cache: Memory, held: Sequence[int]) -> None:
    """Changes the cache: it holds positions `0..held[i]-1` of sequence i."""
    if len(held) > cache.n_seq_max:
        raise ContextError(f"{len(held)} sequences are held, n_seq_max is {cache.n_seq_max}")
    advance(cache, np.repeat(np.arange(len(held)), np.array(held, np.intp)))
