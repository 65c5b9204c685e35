"""Steps 2 to 4 without a model: check, cut and place one batch, and keep what came of it.

Enters: a `Batch` and a `PlanSpec`. Leaves: a `Simulation`, or the error that a context would raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyseq.batch import Batch, CheckedBatch, Limits, SeqRanges, check
from polyseq.context_sizes import ContextSizes
from polyseq.errors import ContextError, NoSlot, PolyseqError, SplitError
from polyseq.explain.spec import PlanSpec
from polyseq.memory import KvCache, Memory, MemoryPlan, Refused, Slot, make_memory
from polyseq.memory.recurrent import Recurrent
from polyseq.memory.window_pair import WindowPair
from polyseq.split import Equal, Ubatch, split_all

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
    if spec.memory == "none":
        checked = check(batch, limits, SeqRanges.empty(sizes.n_seq_max))
        ubatches = split_all(checked, spec.cut, sizes.n_ubatch)
        _check_whole(checked, ubatches)
        return Simulation(spec, sizes, checked, tuple(ubatches), ())
    memory = _memory(spec, sizes)
    try:
        checked = check(batch, limits, memory.ranges)
        if not sizes.unified:
            Equal(sequential=True).check(checked, sizes.n_ubatch)  # whatever the cut, streams share no row
        plan = _placed(memory.init_batch(checked, sizes.n_ubatch))
    except PolyseqError as error:
        Refused(batch, memory, spec.memory_settings(sizes)).attach(error)
        raise
    slots = tuple(slot.kv for slot in plan.slots if slot.kv is not None)
    return Simulation(spec, sizes, checked, plan.ubatches, slots)


def _memory(spec: PlanSpec, sizes: ContextSizes) -> KvCache | WindowPair | Recurrent:
    """A memory of that kind, holding what it is said to hold, with the cut asked for."""
    memory = make_memory(spec.memory_settings(sizes))
    assert isinstance(memory, KvCache | WindowPair | Recurrent)
    _fill(memory, spec.held)
    memory.strategy = spec.cut
    return memory


def _placed(found: MemoryPlan[Any] | NoSlot) -> MemoryPlan[Any]:
    if isinstance(found, NoSlot):
        raise found
    return found


def _fill(cache: Memory, held: Sequence[int]) -> None:
    """Changes the cache: it holds positions `0..held[i]-1` of sequence i."""
    if len(held) > cache.n_seq_max:
        raise ContextError(f"{len(held)} sequences are held, n_seq_max is {cache.n_seq_max}")
    if not any(held):
        return
    batch = Batch()
    batch.extend(np.zeros(sum(held), np.int32), seq=np.repeat(np.arange(len(held)), held))
    checked = check(batch, Limits(n_vocab=_ANY_TOKEN, n_seq_max=cache.n_seq_max), cache.ranges)
    plan = _placed(cache.init_batch(checked, len(batch)))
    for ubatch, slot in zip(plan.ubatches, plan.slots, strict=True):
        cache.apply(ubatch, slot)


def _check_whole(checked: CheckedBatch, ubatches: Sequence[Ubatch]) -> None:
    """Where nothing is kept, no sequence may need what an earlier ubatch computed. Raises `SplitError`."""
    last = np.full(checked.n_seq_max, -1)
    for i, ubatch in enumerate(ubatches):
        present = ubatch.seq_id_unq
        torn = present[last[present] >= 0]
        if len(torn):
            s = int(torn[0])
            raise SplitError(
                f"sequence {s} is cut over ubatches {last[s]} and {i}; without a memory it must be whole in one: "
                + _what_fits(checked)
            )
        last[present] = i


def _what_fits(checked: CheckedBatch) -> str:
    if checked.coupled:
        return f"rows are shared, so take strategy simple and n_ubatch {checked.n_tokens}"
    return f"take strategy seq and n_ubatch {int(np.diff(checked.set_offsets).max())} or more"
