"""Step 4: cells, placement and sequence operations, as a state machine against a model in plain dictionaries."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from polyseq import errors as e
from polyseq.batch import Batch, Limits, check
from polyseq.memory import KvCache, MemoryPlan, Slot
from polyseq.memory.cells import Cells
from polyseq.memory.placement import find_slot
from polyseq.split import split_all

N_VOCAB = 100


def fill(memory: KvCache, seq: object, n: int, n_ubatch: int = 8) -> MemoryPlan | e.NoSlot:
    """Appends n tokens to a sequence, or to a set of them."""
    batch = Batch()
    batch.extend([1] * n, seq=seq)  # type: ignore[arg-type]
    return place(memory, batch, n_ubatch)


def place(memory: KvCache, batch: Batch, n_ubatch: int = 8) -> MemoryPlan | e.NoSlot:
    checked = check(batch, Limits(n_vocab=N_VOCAB, n_seq_max=memory.n_seq_max), memory.ranges)
    memory.settle()
    before = memory.cells.columns()
    plan = memory.init_batch(checked, n_ubatch)
    assert memory.cells.columns() == before, "prepare leaves no trace"
    if isinstance(plan, MemoryPlan):
        for ubatch, slot in zip(plan.ubatches, plan.slots, strict=True):
            memory.apply(ubatch, slot)
    memory.cells.check()
    return plan


def held(memory: KvCache, seq_id: int) -> list[int]:
    """The positions a sequence holds, sorted."""
    stream, mask = memory.cells.held_by(seq_id)
    return sorted(memory.cells.pos[stream, mask].tolist())


def walk(cells: Cells, stream: int, n: int) -> list[int]:
    """The first n free cells from where a search begins, wrapping; fewer where there are fewer."""
    head, used = int(cells.head[stream]), int(cells.used[stream])
    start = 0 if head > used + 2 * n else head
    order = [*range(start, cells.n_cells), *range(start)]
    return [c for c in order if cells.pos[stream, c] < 0][:n]


class MemoryMachine(RuleBasedStateMachine):
    """Any order of decodes and sequence operations, in a unified cache or in streams."""

    @initialize(
        unified=st.booleans(), packed=st.booleans(), n_cells=st.integers(6, 24), n_seq_max=st.sampled_from([1, 3, 70])
    )
    def start(self, unified: bool, packed: bool, n_cells: int, n_seq_max: int) -> None:
        self.unified = unified
        self.memory = KvCache(n_cells=n_cells, n_seq_max=n_seq_max, unified=unified, packed=packed)
        self.seqs = sorted({0, n_seq_max // 2, n_seq_max - 1})
        self.truth: dict[int, list[int]] = {s: [] for s in self.seqs}

    def pick(self, i: int) -> int:
        return self.seqs[i % len(self.seqs)]

    @rule(
        counts=st.lists(st.integers(0, 9), min_size=3, max_size=3),
        n_ubatch=st.integers(1, 8),
        order=st.none() | st.randoms(use_true_random=False),
    )
    def decode(self, counts: list[int], n_ubatch: int, order: Random | None) -> None:
        rows = [s for s, n in zip(self.seqs, counts, strict=False) for _ in range(n)]
        if not rows:
            return
        if order is not None:
            order.shuffle(rows)
        batch = Batch()
        batch.extend([1] * len(rows), seq=rows)
        self.look_for_cells(batch, n_ubatch)
        plan = place(self.memory, batch, n_ubatch)
        wanted = {s: n for s, n in zip(self.seqs, counts, strict=False) if n}
        if isinstance(plan, e.NoSlot):
            assert plan.needed > plan.free
            return
        for s, n in wanted.items():
            first = max(self.truth[s], default=-1) + 1
            self.truth[s] += list(range(first, first + n))

    def look_for_cells(self, batch: Batch, n_ubatch: int) -> None:
        """What `find_slot` finds, whatever short way it takes, is what a walk from the head finds."""
        memory, cells = self.memory, self.memory.cells
        checked = check(batch, Limits(n_vocab=N_VOCAB, n_seq_max=memory.n_seq_max), memory.ranges)
        ubatch = split_all(checked, memory.strategy, n_ubatch)[0]
        streams = [0 if self.unified else int(s) for s in ubatch.first_seq]
        walks = {s: iter(walk(cells, s, streams.count(s))) for s in set(streams)}
        expected = [next(walks[s], None) for s in streams]
        slot = find_slot(cells, ubatch)
        if isinstance(slot, Slot):
            assert slot.row_streams.tolist() == streams and slot.cells.tolist() == expected
        else:
            assert None in [c for s, c in zip(streams, expected, strict=True) if s == slot]

    @rule(i=st.integers(0, 2), p0=st.integers(-1, 12), n=st.integers(-1, 12))
    def rm(self, i: int, p0: int, n: int) -> None:
        s, p1 = self.pick(i), -1 if n < 0 else max(p0, 0) + n
        self.memory.rm(s, p0, p1)
        self.truth[s] = [p for p in self.truth[s] if not (max(p0, 0) <= p and (p1 < 0 or p < p1))]

    @rule(p0=st.integers(-1, 12))
    def rm_all(self, p0: int) -> None:
        self.memory.rm(-1, p0, -1)
        self.truth = {s: [p for p in ps if p < max(p0, 0)] for s, ps in self.truth.items()}

    @rule(i=st.integers(0, 2))
    def keep(self, i: int) -> None:
        self.memory.keep(self.pick(i))
        if self.unified:
            self.truth = {s: ps if s == self.pick(i) else [] for s, ps in self.truth.items()}

    @rule(i=st.integers(0, 2), j=st.integers(0, 2))
    def cp(self, i: int, j: int) -> None:
        src, dst = self.pick(i), self.pick(j)
        if src == dst or (self.unified and self.truth[dst]):
            return
        self.memory.cp(src, dst)
        self.truth[dst] = list(self.truth[src])

    @precondition(lambda self: not self.unified)
    @rule(i=st.integers(0, 2), p0=st.integers(0, 8), delta=st.integers(-5, 5))
    def add(self, i: int, p0: int, delta: int) -> None:
        s = self.pick(i)
        self.memory.add(s, p0, -1, delta)
        moved = [p + delta if p >= p0 else p for p in self.truth[s]]
        self.truth[s] = [p for p in moved if p >= 0]

    @rule()
    def compact(self) -> None:
        for move in self.memory.compaction():
            self.memory.moved(move)
        assert (self.memory.cells.end == self.memory.cells.used).all() and not self.memory.compaction()

    @rule()
    def clear(self) -> None:
        self.memory.clear()
        self.truth = {s: [] for s in self.seqs}

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "memory"):
            return
        self.memory.cells.check()
        for s, positions in self.truth.items():
            assert held(self.memory, s) == sorted(positions)
            assert (self.memory.pos_min(s), self.memory.pos_max(s)) == (
                min(positions, default=-1),
                max(positions, default=-1),
            )
        stream_maps = self.memory.map().streams
        assert sum(m.used for m in stream_maps) == self.memory.n_used
        for m in stream_maps:
            assert sum(r.count for r in m.runs) == m.n_cells
            assert m.largest_run == max((r.count for r in m.runs if not r.seq_ids), default=0)


TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(max_examples=150, stateful_step_count=20, deadline=None)


# ---- refusals ------------------------------------------------------------------------------------------


def test_no_slot_says_what_is_missing_and_who_holds_it() -> None:
    memory = KvCache(n_cells=16, n_seq_max=3, unified=True)
    fill(memory, 0, 9)
    fill(memory, {1, 2}, 3)
    memory.rm(0, 2, 4)
    refusal = fill(memory, 0, 7)
    assert isinstance(refusal, e.NoSlot)
    assert (refusal.needed, refusal.free, refusal.largest_run, refusal.n_cells) == (7, 6, 4, 16)
    assert refusal.holders == (e.Holder(0, 7, 0, 8), e.Holder(1, 3, 0, 2), e.Holder(2, 3, 0, 2))
    assert "needs 7 cells" in str(refusal) and "6 of 16 are free (largest run 4)" in str(refusal)
    assert "sequence 0: 7 cells (p0..8)" in str(refusal)
    assert isinstance(fill(memory, 0, 6), MemoryPlan), "what is free can be filled, neighbours or not"


def test_no_slot_in_streams_names_the_stream() -> None:
    memory = KvCache(n_cells=4, n_seq_max=2, unified=False)
    fill(memory, 1, 3)
    batch = Batch()
    batch.extend([1] * 4, seq=[0, 0, 1, 1])
    refusal = place(memory, batch)
    assert isinstance(refusal, e.NoSlot)
    assert (refusal.stream, refusal.needed, refusal.free) == (1, 2, 1)


# F12: shared rows on streams are an error of their own, never "no slot".
def test_shared_rows_need_a_unified_cache() -> None:
    batch = Batch()
    batch.extend([1] * 4, seq={0, 1, 2, 3})
    batch.extend([1] * 4, seq=[0, 1, 2, 3])
    with pytest.raises(e.CoupledSequences, match="unified"):
        place(KvCache(n_cells=64, n_seq_max=4, unified=False), batch)
    assert isinstance(place(KvCache(n_cells=64, n_seq_max=4, unified=True), batch), MemoryPlan)


# F04: the sound sequence can go on alone.
def test_one_wrong_sequence_is_named_and_the_other_can_go_on() -> None:
    memory = KvCache(n_cells=64, n_seq_max=2, unified=True)
    fill(memory, 0, 10)
    fill(memory, 1, 5)
    batch = Batch()
    batch.add(1, seq=0, pos=10)
    batch.add(1, seq=1, pos=8)
    before = memory.cells.columns()
    with pytest.raises(e.MemoryPosition, match=r"sequence 1 starts at position 8, but memory holds it up to 4"):
        place(memory, batch)
    assert memory.cells.columns() == before
    assert isinstance(fill(memory, 0, 1), MemoryPlan)


# F06: -1 means all sequences, in streams too.
@pytest.mark.parametrize("unified", [True, False])
def test_rm_of_all_sequences(unified: bool) -> None:
    memory = KvCache(n_cells=16, n_seq_max=2, unified=unified)
    fill(memory, 0, 4)
    fill(memory, 1, 4)
    assert memory.rm(-1, 2, -1)
    assert [held(memory, s) for s in (0, 1)] == [[0, 1], [0, 1]]


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("seq_id", [0.5, "0", None])
def test_an_id_is_a_whole_number(unified: bool, seq_id: Any) -> None:
    memory = KvCache(n_cells=8, n_seq_max=2, unified=unified)
    fill(memory, 0, 3)
    before = memory.columns()
    for call in (memory.rm, memory.keep, memory.pos_max, lambda s: memory.cp(s, 1), lambda s: memory.add(s, -1, -1, 1)):
        with pytest.raises(e.SequenceError, match=f"a sequence is named by a whole number, not {seq_id!r}"):
            call(seq_id)
    assert memory.columns() == before


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.rm(-2),
        lambda m: m.rm(2),
        lambda m: m.cp(0, 2),
        lambda m: m.cp(-1, 0),
        lambda m: m.keep(-1),
        lambda m: m.add(2, -1, -1, 1),
        lambda m: m.div(7, -1, -1, 2),
        lambda m: m.pos_min(-1),
        lambda m: m.pos_max(2),
    ],
)
@pytest.mark.parametrize("unified", [True, False])
def test_ids_outside_are_refused(unified: bool, call: object) -> None:
    memory = KvCache(n_cells=16, n_seq_max=2, unified=unified)
    fill(memory, 0, 4)
    before = memory.cells.columns()
    with pytest.raises(e.SequenceError, match=r"outside \[0, 2\)"):
        call(memory)  # type: ignore[operator]
    assert memory.cells.columns() == before


@pytest.mark.parametrize("n_swa", [0, 4])
def test_positions_of_four_sections_are_not_moved(n_swa: int) -> None:
    """F58: K of an image's rows turns by three positions, of which a shift knows one."""
    memory = KvCache(n_cells=8, n_seq_max=2, unified=True, n_pos=4, n_swa=n_swa)
    batch = Batch(n_pos=4)
    batch.extend([1, 2, 3])
    plan = memory.init_batch(check(batch, Limits(n_vocab=9, n_seq_max=2, n_pos=4), memory.ranges), 8)
    assert isinstance(plan, MemoryPlan)
    memory.apply(plan.ubatches[0], plan.slots[0])
    before = memory.columns()
    for name, call in (("add", lambda: memory.add(0, -1, -1, 1)), ("div", lambda: memory.div(0, -1, -1, 2))):
        with pytest.raises(e.SequenceError, match=rf"^{name}: positions of 4 sections \(M-RoPE\) cannot be moved"):
            call()
    assert memory.why_no_drop(0, 0, 1) == memory.why_no_shift != ""
    assert memory.columns() == before


def test_positions_end_where_a_number_does() -> None:
    memory = KvCache(n_cells=8, n_seq_max=2, unified=True)
    fill(memory, 0, 3)
    before = memory.columns()
    with pytest.raises(e.SequenceError, match="sequence 0: a shift by 2147483646 goes beyond the largest position"):
        memory.add(0, -1, -1, 2**31 - 2)
    assert memory.columns() == before


# F53: a part between streams is an error, in one stream it shares cells.
def test_copying_a_part() -> None:
    streams = KvCache(n_cells=16, n_seq_max=2, unified=False)
    fill(streams, 0, 8)
    before = streams.cells.columns()
    with pytest.raises(e.SequenceError, match=r"positions 0..7; copying only \[0, 4\) to sequence 1"):
        streams.cp(0, 1, 0, 4)
    assert streams.cells.columns() == before and not streams.pending()
    streams.cp(0, 1, 0, 8)
    assert streams.pending().copies == (("kv", 0, 1),) and held(streams, 1) == list(range(8))
    streams.clear()
    assert not streams.pending()

    unified = KvCache(n_cells=16, n_seq_max=2, unified=True)
    fill(unified, 0, 8)
    unified.cp(0, 1, 0, 4)
    assert held(unified, 1) == [0, 1, 2, 3] and unified.n_used == 8


def test_shift_and_divide_leave_work_for_k() -> None:
    memory = KvCache(n_cells=16, n_seq_max=1, unified=True)
    fill(memory, 0, 8)
    memory.rm(0, 0, 2)
    memory.add(0, 2, -1, -2)
    assert held(memory, 0) == list(range(6))
    assert list(memory.pending().shifts) == ["kv"]
    assert memory.pending().shifts["kv"][0, :8].tolist() == [0, 0, -2, -2, -2, -2, -2, -2]
    memory.settle()
    memory.div(0, -1, -1, 2)
    assert held(memory, 0) == [0, 0, 1, 1, 2, 2]
    # D5: K is owed the way from the old position to the new one.
    assert memory.pending().shifts["kv"][0, 2:8].tolist() == [0, -1, -1, -2, -2, -3]
    with pytest.raises(e.SequenceError, match="divided by 1 or more, not by 0"):
        memory.div(0, -1, -1, 0)
    with pytest.raises(e.SequenceError, match="M-RoPE"):
        KvCache(n_cells=4, n_seq_max=1, unified=True, n_pos=4).add(0, -1, -1, 1)


def test_positions_stay_within_32_bits() -> None:
    memory = KvCache(n_cells=4, n_seq_max=1, unified=True)
    fill(memory, 0, 2)
    before = memory.cells.columns()
    with pytest.raises(e.SequenceError, match="beyond"):
        memory.add(0, -1, -1, np.iinfo(np.int32).max)
    assert memory.cells.columns() == before


def test_the_map_reads_like_the_cells() -> None:
    memory = KvCache(n_cells=8, n_seq_max=3, unified=True)
    fill(memory, {0, 2}, 2)
    fill(memory, 2, 3)
    memory.rm(2, 3, 4)
    text = str(memory.map())
    assert text.splitlines() == [
        "stream 0: 4 of 8 cells used, largest free run 3, head 3",
        "  [    0 ..     1] p0..1 of {0, 2}",
        "  [    2 ..     2] p2..2 of {2}",
        "  [    3 ..     3] free",
        "  [    4 ..     4] p4..4 of {2}",
        "  [    5 ..     7] free",
    ]
    assert memory.map().to_json()[0]["runs"][1] == {"first": 2, "count": 1, "pos": 2, "seq_ids": (2,)}


@given(st.permutations(range(5)), st.lists(st.integers(0, 6), min_size=5, max_size=5))
def test_a_row_of_each_sequence_is_placed_alike_by_both_cuts(order: list[int], held: list[int]) -> None:
    """The packed cut then goes the short way of the equal one."""
    found = []
    for packed in (False, True):
        cache = KvCache(n_cells=8, n_seq_max=5, unified=False, packed=packed)
        past, step = Batch(), Batch()
        past.extend([0] * (sum(held) + 1), seq=np.repeat(np.arange(5), [held[0] + 1, *held[1:]]))
        step.extend([0] * 5, seq=order)
        for batch in (past, step):
            plan = cache.init_batch(check(batch, Limits(n_vocab=1, n_seq_max=5), cache.ranges), 32)
            assert isinstance(plan, MemoryPlan)
            for ubatch, slot in zip(plan.ubatches, plan.slots, strict=True):
                cache.apply(ubatch, slot)
        slots = [
            (slot.row_streams[i], slot.cells[i])
            for u, slot in zip(plan.ubatches, plan.slots, strict=True)
            for i in range(u.n_tokens)
        ]
        found.append((sorted(slots), cache.columns()))
    assert found[0] == found[1]
