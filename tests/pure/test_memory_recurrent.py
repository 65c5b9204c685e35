"""Running states and hybrids: cells are filled as a backend would, and compared with lists of tokens per sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings as how
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from polyseq import errors as e
from polyseq.batch import Batch, Limits, check
from polyseq.memory import KvLayer, MemoryPlan, MemorySettings, RsLayer, cache_parts, kind_of, make_memory
from polyseq.memory.hybrid import Hybrid
from polyseq.memory.recurrent import Recurrent
from polyseq.memory.state_slot import n_state_cells
from polyseq.split import Equal, Ubatch

STATE, KV = RsLayer((("conv", (2, 3)),)), KvLayer(1, 2, 2)
Tokens = tuple[int, ...]


class Filled:
    """A memory whose state cells hold what a backend would have put there: all tokens taken in so far."""

    def __init__(self, *, hybrid: bool = False, unified: bool = False, n_seq_max: int = 3, n_rs_seq: int = 0) -> None:
        made = MemorySettings(
            layers=(STATE, KV) if hybrid else (STATE,),
            n_cells=64,
            n_seq_max=n_seq_max,
            unified=unified,
            n_ubatch=8,
            n_rs_seq=n_rs_seq,
        )
        memory = make_memory(made)
        assert isinstance(memory, Recurrent | Hybrid) and cache_parts(made) == memory.parts
        self.memory = memory
        self.rs = memory.rs if isinstance(memory, Hybrid) else memory
        self.cells: list[Tokens | None] = [None] * self.rs.n_cells

    def compute(self, ubatch: Ubatch, slot: Any) -> None:
        view = self.memory.views(ubatch, slot).rs
        assert view is not None and ubatch.token is not None
        tokens = ubatch.token.reshape(view.n_seqs, view.n_seq_tokens).tolist()
        before = [() if c < 0 else self.cells[c] for c in view.src]
        for i in range(view.n_seqs):
            state = before[i]
            assert state is not None
            for t in range(view.n_seq_tokens):
                state = (*state, tokens[i][t])
                if view.dst[i, t] >= 0:
                    self.cells[view.dst[i, t]] = state

    def plan(self, seqs: list[Any], tokens: list[int], n_ubatch: int) -> MemoryPlan[Any]:
        batch = Batch()
        batch.extend(tokens, seq=seqs)
        checked = check(batch, Limits(n_vocab=1000, n_seq_max=self.memory.n_seq_max), self.memory.ranges)
        before = self.memory.columns()
        plan = self.memory.init_batch(checked, n_ubatch)
        assert isinstance(plan, MemoryPlan) and self.memory.columns() == before
        return plan

    def decode(self, seqs: list[Any], tokens: list[int], n_ubatch: int = 8, *, fail_at: int | None = None) -> None:
        """Applies and fills ubatch after ubatch; one that fails has written garbage before all is undone."""
        plan = self.plan(seqs, tokens, n_ubatch)
        held = [c for c in range(self.rs.n_cells) if c in self.rs.states.in_use()]
        before = self.memory.columns(), [self.cells[c] for c in held]
        mark = self.memory.mark()
        for i, (ubatch, slot) in enumerate(zip(plan.ubatches, plan.slots, strict=True)):
            self.memory.apply(ubatch, slot)
            self.compute(ubatch, slot)
            if i == fail_at:
                for c in self.memory.views(ubatch, slot).rs.dst.ravel():  # type: ignore[union-attr]
                    if c >= 0:
                        self.cells[c] = (-1,)
                self.memory.undo(mark, plan.slots)
                assert (self.memory.columns(), [self.cells[c] for c in held]) == before
                return

    def state(self, seq_id: int) -> Tokens | None:
        running = self.rs.states.running.get(seq_id)
        return None if running is None else self.cells[running.cell]


class StateMachine(RuleBasedStateMachine):
    """Any order of calls, failures and sequence operations."""

    @initialize(kind=st.sampled_from(["rs", "hybrid", "unified"]), n_rs_seq=st.integers(0, 3))
    def start(self, kind: str, n_rs_seq: int) -> None:
        self.n_rs_seq = n_rs_seq
        self.kind = kind
        self.filled = Filled(hybrid=kind != "rs", unified=kind == "unified", n_rs_seq=n_rs_seq)
        self.truth: dict[int, Tokens] = {}
        self.n_tokens = 0
        self.least_back: dict[int, int] = {}  # how far each sequence must be able to go back

    @rule(
        counts=st.lists(st.integers(0, 7), min_size=3, max_size=3),
        n_ubatch=st.integers(5, 8),
        fail_at=st.none() | st.integers(0, 3),
    )
    def decode(self, counts: list[int], n_ubatch: int, fail_at: int | None) -> None:
        seqs = [s for s, n in enumerate(counts) for _ in range(n)]
        if not seqs or (self.kind != "rs" and sum(map(len, self.truth.values())) + len(seqs) > 60):
            return
        tokens = [self.n_tokens % 1000 + i for i in range(len(seqs))]
        n_ubatches = len(self.filled.plan(seqs, tokens, n_ubatch).ubatches)
        self.filled.decode(seqs, tokens, n_ubatch, fail_at=fail_at)
        if fail_at is not None and fail_at < n_ubatches:
            return
        self.n_tokens = (self.n_tokens + len(seqs)) % 900
        for s, token in zip(seqs, tokens, strict=True):
            self.truth[s] = (*self.truth.get(s, ()), token)
            self.least_back[s] = min(self.least_back.get(s, 0) + 1, self.n_rs_seq, len(self.truth[s]) - 1)

    @rule(s=st.integers(0, 2), n=st.integers(1, 4))
    def back(self, s: int, n: int) -> None:
        before = self.filled.memory.columns()
        left = self.truth.get(s, ())[:-n]
        try:
            assert self.filled.memory.rm(s, len(left), -1)
        except e.SequenceError:
            assert n > self.least_back[s] and left and self.filled.memory.columns() == before
            return
        if left:
            assert n <= self.n_rs_seq
            self.truth[s] = left
            self.least_back[s] = max(self.least_back[s] - n, 0)
        else:
            self.truth.pop(s, None)
            self.least_back.pop(s, None)

    @rule(s=st.integers(0, 2), t=st.integers(0, 2))
    def cp(self, s: int, t: int) -> None:
        self.filled.memory.cp(s, t)
        if s in self.truth:
            self.truth[t], self.least_back[t] = self.truth[s], self.least_back[s]
        for part, _, _ in self.filled.memory.pending().copies:
            assert part == "kv", "states are copied by reference"
            self.filled.memory.copied()

    @rule(s=st.integers(0, 2))
    def keep(self, s: int) -> None:
        self.filled.memory.keep(s)
        if self.kind != "hybrid":
            self.truth = {t: tokens for t, tokens in self.truth.items() if t == s}

    @rule(s=st.integers(-1, 2))
    def rm(self, s: int) -> None:
        assert self.filled.memory.rm(s)
        self.truth = {t: tokens for t, tokens in self.truth.items() if s not in (-1, t)}

    @invariant()
    def every_state_is_of_its_tokens(self) -> None:
        if not hasattr(self, "filled"):
            return
        self.filled.memory.check()
        for s in range(3):
            assert self.filled.state(s) == self.truth.get(s)
            assert self.filled.memory.pos_max(s) == len(self.truth.get(s, ())) - 1
            if s in self.truth:
                assert self.filled.memory.pos_max(s) - self.filled.memory.pos_min(s) >= 0


TestStateMachine = StateMachine.TestCase
TestStateMachine.settings = how(max_examples=25, stateful_step_count=20, deadline=None)


def test_the_layers_choose_the_kind() -> None:
    sizes = {"n_cells": 8, "n_seq_max": 2, "unified": False, "n_ubatch": 4}
    assert kind_of(MemorySettings(layers=(STATE, STATE), **sizes)).name == "recurrent"  # type: ignore[arg-type]
    assert kind_of(MemorySettings(layers=(STATE, KV, None), **sizes)).name == "hybrid"  # type: ignore[arg-type]


def test_an_ubatch_too_small_for_the_snapshots_is_refused() -> None:
    with pytest.raises(e.ContextError, match="n_rs_seq 3 needs an n_ubatch of at least 5"):
        MemorySettings(layers=(STATE,), n_cells=8, n_seq_max=2, unified=False, n_ubatch=4, n_rs_seq=3)


def test_cuts_follow_streams_and_snapshots() -> None:
    assert Filled().memory.strategy == Equal(sequential=True)
    assert Filled(n_rs_seq=2).memory.strategy == Equal(sequential=True, n_keep_tail=3)
    assert Filled(hybrid=True, n_rs_seq=2).memory.strategy == Equal(sequential=True, n_keep_tail=3)
    assert Filled(hybrid=True, unified=True).memory.strategy == Equal(sequential=False)


def test_a_copy_is_by_reference_until_somebody_writes() -> None:
    filled = Filled()
    filled.decode([0] * 3, [1, 2, 3])
    filled.memory.cp(0, 2)
    assert filled.memory.n_used == 1
    filled.decode([0, 2], [4, 5])
    assert filled.memory.n_used == 2 and (filled.state(0), filled.state(2)) == ((1, 2, 3, 4), (1, 2, 3, 5))


def test_what_cannot_be_removed_is_said() -> None:
    filled = Filled(n_rs_seq=2)
    filled.decode([0] * 6, [1, 2, 3, 4, 5, 6])
    before = filled.memory.columns()
    with pytest.raises(e.SequenceError, match=r"p0\.\.5.*all of it or what follows 3 or 4"):
        filled.memory.rm(0, 3, -1)
    with pytest.raises(e.SequenceError):
        filled.memory.rm(0, 1, 3)
    with pytest.raises(e.SequenceError):
        filled.memory.rm(-1, 2, -1)
    with pytest.raises(e.SequenceError, match="only be moved as a whole"):
        filled.memory.add(0, 3, -1, -2)
    with pytest.raises(e.SequenceError, match="div"):
        filled.memory.div(0, -1, -1, 2)
    assert filled.memory.columns() == before
    assert filled.memory.rm(0, 9, -1), "nothing lies there"
    filled.memory.cp(0, 1, -1, 5)
    assert filled.state(1) == (1, 2, 3, 4, 5)
    with pytest.raises(e.SequenceError):
        filled.memory.cp(0, 1, 2, -1)
    filled.memory.add(0, -1, -1, 10)
    assert (filled.memory.pos_min(0), filled.memory.pos_max(0)) == (13, 15)


@pytest.mark.parametrize("delta", [-1, 2**31 - 2])
def test_positions_stay_within_what_they_can_be(delta: int) -> None:
    filled = Filled()
    filled.decode([0] * 3, [1, 2, 3])
    before = filled.memory.columns()
    with pytest.raises(e.SequenceError, match=f"positions of sequence 0, .* cannot be moved by {delta}"):
        filled.memory.add(0, -1, -1, delta)
    assert filled.memory.columns() == before


@pytest.mark.parametrize("unified", [False, True])
def test_a_hybrid_refuses_for_both_parts(unified: bool) -> None:
    filled = Filled(hybrid=True, unified=unified)
    filled.decode([0] * 6, [1, 2, 3, 4, 5, 6])
    before = filled.memory.columns()
    for refused in (
        lambda m: m.rm(0, 3, -1),
        lambda m: m.cp(0, 1, 0, 3),
        lambda m: m.add(0, 3, -1, 1),
        lambda m: m.div(0, -1, -1, 2),
    ):
        with pytest.raises(e.SequenceError):
            refused(filled.memory)
        assert filled.memory.columns() == before
    batch = Batch()
    batch.extend([1] * 70, seq=1)
    checked = check(batch, Limits(n_vocab=9, n_seq_max=3), filled.memory.ranges)
    assert isinstance(filled.memory.init_batch(checked, 8), e.NoSlot) and filled.memory.columns() == before


def test_sequences_that_share_a_row_share_a_state() -> None:
    filled = Filled(hybrid=True, unified=True)
    filled.decode([{0, 1}] * 3 + [{0}, {1}], [1, 2, 3, 4, 5])
    assert (filled.state(0), filled.state(1)) == ((1, 2, 3, 4), (1, 2, 3, 5))
    with pytest.raises(e.CoupledSequences, match="running states differ"):
        filled.plan([{0, 1}], [6], 8)
    filled.memory.cp(0, 1)
    filled.decode([{0, 1}], [6])
    assert filled.state(0) == filled.state(1) == (1, 2, 3, 4, 6)
    with pytest.raises(e.CoupledSequences):
        Filled().plan([{0, 1}], [6], 8)


def test_what_shares_only_some_cells_is_not_moved() -> None:
    """A common prefix: moving it with one of the two would tear the other."""
    filled = Filled(hybrid=True, unified=True)
    filled.decode([{0, 1}] * 3 + [{1}], [1, 2, 3, 4])
    before = filled.memory.columns()
    with pytest.raises(e.SequenceError, match="sequence 1 shares cells with sequence 0 and holds others too; moving"):
        filled.memory.add(0, -1, -1, 5)
    assert filled.memory.columns() == before


def test_cells_are_enough_for_the_longest_call() -> None:
    filled = Filled(n_seq_max=4, n_rs_seq=3)
    assert filled.rs.n_cells == n_state_cells(n_seq_max=4, n_rs_seq=3) == 36
    for _ in range(6):
        filled.decode(list(range(4)) * 9, list(range(36)), 16)
    assert filled.memory.n_used == 16 and "p53" in str(filled.memory.map())
    assert all(np.diff(sorted(filled.rs.states.in_use())) > 0)
