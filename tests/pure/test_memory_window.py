"""The window pair: sizes, the fallback cut, and any history against plain sets of positions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings as how
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from polyseq import errors as e
from polyseq.batch import Batch, Limits, check
from polyseq.memory import KvCache, KvLayer, MemoryPlan, MemorySettings, cache_parts, make_memory
from polyseq.memory.pair import PairSlot
from polyseq.memory.slot import Slot
from polyseq.memory.window_pair import WindowPair
from polyseq.split import Equal, Packed, Simple

N_SWA = 4
LAYERS = (KvLayer(1, 4, 4, n_swa=N_SWA), KvLayer(1, 4, 4))


def pair(n_cells: int, n_window: int, n_seq_max: int, *, unified: bool, packed: bool = False) -> WindowPair:
    """A pair whose window cache is as small as asked for."""
    sizes = {"n_seq_max": n_seq_max, "unified": unified, "packed": packed}
    return WindowPair(KvCache(n_cells=n_cells, **sizes), KvCache(n_cells=n_window, n_swa=N_SWA, **sizes))


def rows(seqs: list[int]) -> Batch:
    batch = Batch()
    batch.extend([1] * len(seqs), seq=seqs)
    return batch


def place(memory: WindowPair, seqs: list[int], n_ubatch: int) -> MemoryPlan[PairSlot[Slot]] | e.NoSlot:
    """Places and applies a row of each sequence named, or changes nothing."""
    memory.settle()
    before = memory.columns()
    plan = memory.init_batch(check(rows(seqs), Limits(n_vocab=9, n_seq_max=memory.n_seq_max), memory.ranges), n_ubatch)
    assert memory.columns() == before, "prepare leaves no trace"
    if isinstance(plan, MemoryPlan):
        mark = memory.mark()
        for ubatch, slot in zip(plan.ubatches, plan.slots, strict=True):
            memory.apply(ubatch, slot)
        after = memory.columns()
        memory.undo(mark, plan.slots)
        assert memory.columns() == before, "a call is undone to the byte"
        for ubatch, slot in zip(plan.ubatches, plan.slots, strict=True):
            memory.apply(ubatch, slot)
        assert memory.columns() == after
    return plan


def held(cache: KvCache, seq_id: int) -> set[int]:
    stream, mask = cache.cells.held_by(seq_id)
    pos = cache.cells.pos[stream, mask].tolist()
    assert len(set(pos)) == len(pos)
    return set(pos)


class WindowMachine(RuleBasedStateMachine):
    """Any order of decodes and sequence operations. The window cache holds at least what queries to come can see."""

    @initialize(
        kind=st.sampled_from(["unified", "streams", "packed"]), n_cells=st.integers(12, 40), n_extra=st.integers(0, 6)
    )
    def start(self, kind: str, n_cells: int, n_extra: int) -> None:
        self.unified = kind == "unified"
        n_window = min(n_cells, N_SWA * (3 if self.unified else 1) + 1 + n_extra)
        self.memory = pair(n_cells, n_window, 3, unified=self.unified, packed=kind == "packed")
        self.all: dict[int, set[int]] = {s: set() for s in range(3)}
        self.must: dict[int, set[int]] = {s: set() for s in range(3)}

    @rule(counts=st.lists(st.integers(0, 9), min_size=3, max_size=3), n_ubatch=st.integers(1, 8), turns=st.booleans())
    def decode(self, counts: list[int], n_ubatch: int, turns: bool) -> None:
        seqs = [s for s, n in enumerate(counts) for _ in range(n)]
        if turns:
            seqs = [s for i in range(max(counts)) for s in range(3) if i < counts[s]]
        # A sequence that has lost its window is not continued.
        if not seqs or any(self.all[s] and max(self.all[s]) != max(self.must[s], default=-1) for s in seqs):
            return
        plan = place(self.memory, seqs, n_ubatch)
        if isinstance(plan, e.NoSlot):
            return
        assert all(u.n_tokens <= n_ubatch for u in plan.ubatches)
        for s, n in enumerate(counts):
            first = max(self.all[s], default=-1) + 1
            new = set(range(first, first + n))
            self.all[s] |= new
            self.must[s] |= new
            if n:
                self.must[s] = {p for p in self.must[s] if max(new) + 1 - p < N_SWA}

    @rule(s=st.integers(0, 2), p0=st.integers(-1, 12), n=st.integers(-1, 12))
    def rm(self, s: int, p0: int, n: int) -> None:
        p1 = -1 if n < 0 else max(p0, 0) + n
        assert self.memory.rm(s, p0, p1)
        for held_positions in (self.all, self.must):
            held_positions[s] = {p for p in held_positions[s] if not (max(p0, 0) <= p and (p1 < 0 or p < p1))}

    @rule(s=st.integers(0, 2), t=st.integers(0, 2))
    def cp(self, s: int, t: int) -> None:
        if s == t or (self.unified and self.all[t]):
            return
        self.memory.cp(s, t)
        self.all[t], self.must[t] = set(self.all[s]), set(self.must[s])

    @rule(s=st.integers(0, 2))
    def keep(self, s: int) -> None:
        self.memory.keep(s)
        for held_positions in (self.all, self.must):
            for t in range(3):
                if self.unified and t != s:
                    held_positions[t] = set()

    @precondition(lambda self: not self.unified)
    @rule(s=st.integers(0, 2), delta=st.integers(-3, 3))
    def add(self, s: int, delta: int) -> None:
        self.memory.add(s, -1, -1, delta)
        for held_positions in (self.all, self.must):
            held_positions[s] = {p + delta for p in held_positions[s] if p + delta >= 0}

    @rule()
    def clear(self) -> None:
        self.memory.clear()
        self.all = {s: set() for s in range(3)}
        self.must = {s: set() for s in range(3)}

    @invariant()
    def holds_what_may_be_seen(self) -> None:
        if not hasattr(self, "memory"):
            return
        self.memory.check()
        for s in range(3):
            assert held(self.memory.kv, s) == self.all[s]
            window = held(self.memory.kv_swa, s)
            assert self.must[s] <= window <= self.all[s]
            assert self.memory.pos_max(s) == max(window, default=-1)


TestWindowMachine = WindowMachine.TestCase
TestWindowMachine.settings = how(max_examples=25, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize(
    ("unified", "n_seq_max", "n_ubatch", "n_cells", "full", "wanted"),
    [
        (False, 2, 64, 1024, False, 768),
        (True, 2, 64, 2048, False, 1280),
        (True, 3, 32, 1536, False, 1536),
        (False, 2, 64, 300, False, 300),
        (True, 2, 64, 2048, True, 2048),
    ],
)
def test_cells_of_the_window(
    unified: bool, n_seq_max: int, n_ubatch: int, n_cells: int, full: bool, wanted: int
) -> None:
    made = MemorySettings(
        layers=(KvLayer(1, 4, 4, n_swa=512), KvLayer(1, 4, 4)),
        n_cells=n_cells,
        n_seq_max=n_seq_max,
        unified=unified,
        n_ubatch=n_ubatch,
        swa_full=full,
    )
    kv, kv_swa = cache_parts(made)
    assert (kv.name, kv.n_cells, list(kv.layers)) == ("kv", n_cells, [1])
    assert (kv_swa.name, kv_swa.n_cells, list(kv_swa.layers)) == ("kv_swa", wanted, [0])
    assert make_memory(made).parts == (kv, kv_swa)


def test_cuts_follow_the_streams() -> None:
    assert isinstance(pair(9, 9, 2, unified=True).strategy, Simple)
    assert pair(9, 9, 2, unified=False).strategy == Equal(sequential=True)
    assert isinstance(pair(9, 9, 2, unified=False, packed=True).strategy, Packed)


def test_where_the_simple_cut_does_not_fit_the_equal_one_is_tried() -> None:
    memory = pair(64, 12, 2, unified=True)
    assert isinstance(place(memory, [0] * 5 + [1] * 5, 4), MemoryPlan)
    # Two cells are free, and two of each sequence are behind its window: 6, one less than an ubatch of the simple cut.
    plan = place(memory, [0] * 6 + [1] * 6, 7)
    assert isinstance(plan, MemoryPlan)
    assert [(u.n_seqs, u.n_seq_tokens) for u in plan.ubatches] == [(2, 3), (2, 3)]


def test_a_full_window_cache_refuses_for_both() -> None:
    memory = pair(64, 6, 1, unified=False)
    before = memory.columns()
    refused = place(memory, [0] * 20, 7)
    assert isinstance(refused, e.NoSlot) and refused.n_cells == 6
    assert memory.columns() == before
    assert isinstance(place(memory, [0] * 20, 2), MemoryPlan)
    assert memory.kv.n_used == 20 and memory.kv_swa.n_used == 6


def test_cells_that_will_be_overwritten_are_named_before() -> None:
    memory = pair(64, 6, 1, unified=False)
    place(memory, [0] * 6, 2)
    (ubatch,), (slot,) = vars_of(memory, [0, 0], 2)
    (named,) = memory.in_use(memory.mark(), slot)
    assert named.part == "kv_swa" and named.streams.tolist() == [0, 0]
    assert sorted(memory.kv_swa.cells.pos[0, named.cells]) == [0, 1]
    memory.apply(ubatch, slot)
    assert held(memory.kv_swa, 0) == {2, 3, 4, 5, 6, 7}


def vars_of(memory: WindowPair, seqs: list[int], n_ubatch: int) -> tuple[tuple[object, ...], tuple[object, ...]]:
    plan = memory.init_batch(check(rows(seqs), Limits(n_vocab=9, n_seq_max=memory.n_seq_max), memory.ranges), n_ubatch)
    assert isinstance(plan, MemoryPlan)
    return plan.ubatches, plan.slots


def test_a_row_sees_its_window_only() -> None:
    memory = pair(64, 8, 2, unified=True)
    place(memory, [0, 1] * 4, 4)
    (ubatch,), (slot,) = vars_of(memory, [1, 0], 2)
    memory.apply(ubatch, slot)
    views = memory.views(ubatch, slot)
    assert views.kv is not None and views.kv_swa is not None
    for i, s in enumerate([1, 0]):
        for view, cache, least in ((views.kv, memory.kv, 0), (views.kv_swa, memory.kv_swa, 5 - N_SWA)):
            seen = np.flatnonzero(view.visible(slice(i, i + 1))[0])
            assert sorted(cache.cells.pos[0, seen]) == list(range(least, 5))
            assert all(cache.cells.owner(np.zeros(len(seen), np.intp), seen) == s)
