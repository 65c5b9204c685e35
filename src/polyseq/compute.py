"""Step 5 for one ubatch: its inputs, a plan that fits, and the results.

Enters: an `Ubatch` whose slot has been applied. Leaves: its results, in the call's `OutputCollector`.
"""

from __future__ import annotations

from typing import Any

from polyseq.backends import Plan
from polyseq.batch import CheckedBatch
from polyseq.collector import OutputCollector
from polyseq.graph import Content, Inputs, PlanCache, Wanted
from polyseq.memory import Memory
from polyseq.mode import Mode
from polyseq.nan_guard import refuse_not_finite
from polyseq.split import Ubatch
from polyseq.trace import Recorder


class Compute:
    """What a context asks of every ubatch: `mode`, and rows per token if `hidden` or of `layers`."""

    def __init__(
        self,
        memory: Memory,
        plans: PlanCache[Plan],
        trace: Recorder,
        *,
        mode: Mode,
        hidden: bool,
        layers: tuple[int, ...],
        nan_guard: bool,
    ) -> None:
        self._memory = memory
        self._plans = plans
        self._trace = trace
        self._mode = mode
        self._hidden = hidden
        self._layers = layers
        self._nan_guard = nan_guard

    def collector(self, *, n_vocab: int, n_embd: int) -> OutputCollector:
        """Pure. An empty one for the results of a call."""
        return OutputCollector(
            n_vocab=n_vocab,
            n_embd=n_embd,
            logits=self._mode.logits,
            pooled=self._mode.pooling is not None,
            hidden=self._hidden,
            layers=self._layers,
        )

    def ubatch(self, ubatch: Ubatch, slot: Any, collector: OutputCollector) -> None:
        """Changes cache tensors and collector: an applied ubatch is computed. Raises `NotFinite` if that is guarded."""
        out_rows = self._mode.out_rows(ubatch)
        wanted = Wanted(
            content=content(ubatch),
            logits=self._mode.logits and len(out_rows) > 0,
            hidden=self._hidden,
            layers=self._layers,
            pooling=self._mode.pooling,
        )
        views = self._memory.views(ubatch, slot)
        inputs = Inputs(
            token=ubatch.token,
            embd=ubatch.embd,
            is_embd=ubatch.is_embd,
            pos=ubatch.pos,
            out_rows=out_rows,
            kv=views.kv,
            kv_swa=views.kv_swa,
            rs=views.rs,
            seqs=views.seqs or self._mode.seqs(ubatch),
        )
        self._trace.applied()
        plan = self._plans.get(wanted)
        self._trace.planned(self._plans.misses, self._plans.reasons)
        results = plan.run(inputs)
        if self._nan_guard:
            refuse_not_finite(ubatch, out_rows, results)
        self._trace.computed()
        collector.collect(ubatch, results)
        self._trace.collected(len(out_rows))


def content(rows: CheckedBatch | Ubatch) -> Content:
    """Pure. What rows are made of."""
    if rows.is_embd is not None:
        return "mixed"
    if rows.embd is None:
        return "token"
    return "embd" if rows.token is None else "both"
