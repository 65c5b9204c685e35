"""What a simulation is asked for: a kind of memory, a cut, the sizes of a context, and what memory already holds.

Enters: settings as a person gives them, most left out. Leaves: the cut, and the sizes in effect for one batch.
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
from polyseq.memory import CacheLayer, KvLayer, MemorySettings, RsLayer
from polyseq.split import Equal, Packed, Seq, Simple, Strategy, Whole

MEMORIES: Mapping[str, tuple[str, ...]] = MappingProxyType(  # the cuts that each takes; the first is its own choice
    {
        "unified": ("simple", "equal", "seq"),
        "streams": ("equal", "packed", "seq"),
        "window": ("simple", "equal", "seq"),
        "recurrent": ("equal", "seq"),
        "none": ("whole", "simple", "equal", "seq"),
    }
)
STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {"simple": Simple(), "equal": Equal(), "packed": Packed(), "seq": Seq(), "whole": Whole()}
)
N_SWA = 512  # of a window, where nothing else is asked for
_KEPT = KvLayer(n_head_kv=1, n_embd_head_k=1, n_embd_head_v=1)


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """Settings of a context that has no model. Zero and None take what the batch needs."""

    memory: str = "unified"  # of MEMORIES; window is unified, none is an encoder's: nothing is kept
    strategy: str | None = None  # of STRATEGIES; None = what the memory chooses
    n_keep_tail: int = 0  # equal only; a recurrent memory keeps one state for each of these rows
    n_swa: int = 0  # window only: a row sees so many positions; 0 = N_SWA
    n_ctx: int = 0  # cells in all
    n_seq_max: int = 0
    n_batch: int | None = None
    n_ubatch: int | None = None
    held: tuple[int, ...] = ()  # cells that memory already holds of sequence 0, 1, ...

    def check(self) -> None:
        """Pure. Raises `CapabilityError` for what cannot be simulated or does not go together."""
        known = ", ".join(MEMORIES)
        if self.memory not in MEMORIES:
            raise CapabilityError(f"memory {self.memory!r} is none of {known}")
        if self.strategy is not None and self.strategy not in STRATEGIES:
            raise CapabilityError(f"strategy {self.strategy!r} is none of {', '.join(STRATEGIES)}")
        if self.strategy_name not in MEMORIES[self.memory]:
            able = [name for name, cuts in MEMORIES.items() if self.strategy_name in cuts]
            raise CapabilityError(
                f"memory {self.memory} cannot take the {self.strategy_name} cut; take strategy "
                f"{' or '.join(MEMORIES[self.memory])}, or memory {' or '.join(able)}"
            )
        if self.n_swa < 0 or (self.n_swa and self.memory != "window"):
            raise CapabilityError(f"n_swa {self.n_swa}: a window of 1 or more positions belongs to memory window")
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
        return self.strategy or MEMORIES[self.memory][0]

    @property
    def cut(self) -> Strategy:
        """The strategy, as this memory needs it."""
        return cut_named(self.strategy_name, memory=self.memory, n_keep_tail=self.n_keep_tail)

    def memory_settings(self, sizes: ContextSizes) -> MemorySettings:
        """What that memory is made from. Raises `BadSeqCount`, `ContextError`."""
        windowed = replace(_KEPT, n_swa=self.n_swa or N_SWA)
        kept: dict[str, tuple[CacheLayer | None, ...]] = {
            "window": (_KEPT, windowed),
            "recurrent": (RsLayer((("state", (1,)),)),),
            "none": (None,),
        }
        return MemorySettings(
            layers=kept.get(self.memory, (_KEPT,)),
            n_cells=sizes.n_ctx_seq,
            n_seq_max=sizes.n_seq_max,
            unified=sizes.unified,
            n_ubatch=sizes.n_ubatch,
            n_rs_seq=max(self.n_keep_tail - 1, 0) if self.memory == "recurrent" else 0,
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
    """Pure. A cut by its name; streams and running states need the equal cut over consecutive ids."""
    if name == "equal":
        return Equal(sequential=memory in ("streams", "recurrent"), n_keep_tail=n_keep_tail)
    return STRATEGIES[name]
