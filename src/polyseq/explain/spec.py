"""What a simulation is asked for: a kind of memory, a cut, the sizes of a context, and what memory already holds.

Enters: settings as a person gives them, most left out. Leaves: what a memory of that kind is made from, and the sizes
in effect for one batch. Which memories there are, and which cuts they take, is the registry's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from types import MappingProxyType

import numpy as np

from polyseq.batch import Batch
from polyseq.batch.seqset import MAX_SEQ
from polyseq.context_sizes import DEFAULT_N_BATCH, ContextSizes, effective_sizes
from polyseq.errors import CapabilityError, EmptyBatch
from polyseq.memory import Example, MemorySettings, RsLayer, examples
from polyseq.split import Equal, Packed, Seq, Simple, Strategy, Whole

_CUTS: tuple[Strategy, ...] = (Simple(), Equal(), Packed(), Seq(), Whole())
STRATEGIES: Mapping[str, Strategy] = MappingProxyType({cut.name: cut for cut in _CUTS})


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """Settings of a context that has no model. Zero and None take what the batch needs."""

    memory: str = "unified"  # of `polyseq.memory.examples`; none is an encoder's: nothing is kept
    strategy: str | None = None  # of STRATEGIES; None = what the memory chooses
    n_keep_tail: int = 0  # equal only; a running state is kept after each of these rows
    n_swa: int = 0  # where there is a window: a row sees so many positions; 0 = the example's
    n_ctx: int = 0  # cells in all
    n_seq_max: int = 0
    n_batch: int | None = None
    n_ubatch: int | None = None
    held: tuple[int, ...] = ()  # cells that memory already holds of sequence 0, 1, ...

    def check(self) -> None:
        """Pure. Raises `CapabilityError` for what cannot be simulated or does not go together."""
        known = examples()
        if self.memory not in known:
            raise CapabilityError(f"memory {self.memory!r} is none of {', '.join(known)}")
        if self.strategy is not None and self.strategy not in STRATEGIES:
            raise CapabilityError(f"strategy {self.strategy!r} is none of {', '.join(STRATEGIES)}")
        own = [cut.name for cut in self.example.cuts]
        if self.strategy_name not in own:
            able = [e.name for e in known.values() if self.strategy_name in [cut.name for cut in e.cuts]]
            raise CapabilityError(
                f"memory {self.memory} cannot take the {self.strategy_name} cut; take strategy "
                f"{' or '.join(own)}, or memory {' or '.join(able)}"
            )
        if self.n_swa < 0 or (self.n_swa and not self.example.n_swa):
            able = [e.name for e in known.values() if e.n_swa]
            raise CapabilityError(
                f"n_swa {self.n_swa}: a window of 1 or more positions belongs to memory {' or '.join(able)}"
            )
        if self.n_keep_tail < 0 or (self.n_keep_tail and self.strategy_name != "equal"):
            raise CapabilityError(
                f"n_keep_tail {self.n_keep_tail}: the equal cut keeps 0 or more rows of a tail together, "
                f"the {self.strategy_name} cut none"
            )
        if any(n < 0 for n in self.held):
            raise CapabilityError(f"memory cannot hold {min(self.held)} cells of a sequence")
        if any(self.held) and not any(self.example.layers):
            raise CapabilityError("without a memory nothing is held; leave held out, or take memory unified or streams")

    @property
    def example(self) -> Example:
        """The memory, with the window asked for."""
        example = examples()[self.memory]
        return example.with_window(self.n_swa) if self.n_swa > 0 else example

    @property
    def strategy_name(self) -> str:
        return self.strategy or self.example.cuts[0].name

    @property
    def cut(self) -> Strategy:
        """The strategy, as this memory needs it."""
        cut = cut_named(self.strategy_name, self.example)
        return replace(cut, n_keep_tail=self.n_keep_tail) if isinstance(cut, Equal) else cut

    def memory_settings(self, sizes: ContextSizes) -> MemorySettings:
        """What that memory is made from. Raises `BadSeqCount`, `ContextError`."""
        layers = self.example.layers
        running = any(isinstance(layer, RsLayer) for layer in layers)
        return MemorySettings(
            layers=layers,
            n_cells=sizes.n_ctx_seq,
            n_seq_max=sizes.n_seq_max,
            unified=sizes.unified,
            n_ubatch=sizes.n_ubatch,
            n_rs_seq=max(self.n_keep_tail - 1, 0) if running else 0,
            strategy=self.cut,
        )

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
        if not self.n_ctx and not self.example.unified:
            n_ctx = ceil(n_ctx / n_seq_max) * n_seq_max
        most = max(DEFAULT_N_BATCH, len(batch), self.n_ubatch or 0)
        return effective_sizes(
            n_ctx=n_ctx,
            n_ctx_train=max(n_ctx, 1),
            n_seq_max=n_seq_max,
            n_batch=min(most, max(n_ctx, 1)) if self.n_batch is None else self.n_batch,
            n_ubatch=self.n_ubatch,
            unified=self.example.unified,
        )

    def _needed_cells(self, batch: Batch, n_seq_max: int) -> int:
        if self.example.unified:
            return sum(self.held) + len(batch)
        ids = batch.seq_ids[(batch.seq_ids >= 0) & (batch.seq_ids < n_seq_max)]
        counts = np.bincount(ids, minlength=n_seq_max)
        counts[: len(self.held)] += np.array(self.held[:n_seq_max], counts.dtype)
        return n_seq_max * max(int(counts.max()), 1)


def cut_named(name: str, memory: Example) -> Strategy:
    """Pure. A cut by its name: as that memory needs it, if it takes it at all."""
    return next((cut for cut in memory.cuts if cut.name == name), STRATEGIES[name])
