"""Which memory serves which layers, and what the simplest kind answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st

from polyseq import errors as e
from polyseq.batch import Batch, CheckedBatch, Limits, check
from polyseq.memory import (
    KvLayer,
    Memory,
    MemoryPlan,
    MemorySettings,
    RsLayer,
    cache_parts,
    kind_of,
    make_memory,
    window_pair,
)
from polyseq.memory.no_memory import NoMemory

FULL, WINDOW = KvLayer(2, 8, 8), KvLayer(2, 8, 8, n_swa=4)
STATE = RsLayer((("conv", (6, 3)), ("ssm", (6, 2))))


def settings(*layers: KvLayer | RsLayer | None, **sizes: int) -> MemorySettings:
    return MemorySettings(layers=layers, **{"n_cells": 16, "n_seq_max": 3, "unified": False, "n_ubatch": 8, **sizes})  # type: ignore[arg-type]


# ---- ask, then do: of every kind ---------------------------------------------------------------------------

MANY: dict[str, dict[str, Any]] = {
    "unified": {"layers": (FULL,), "unified": True},
    "streams": {"layers": (FULL,)},
    "streams, packed": {"layers": (FULL,), "packed": True},
    "unified, pooled": {"layers": (FULL,), "unified": True, "embeddings": True},
    "window, unified": {"layers": (FULL, WINDOW), "unified": True},
    "window, streams": {"layers": (FULL, WINDOW)},
    "recurrent": {"layers": (STATE,)},
    "recurrent, snapshots": {"layers": (STATE,), "n_rs_seq": 2},
    "hybrid, unified": {"layers": (FULL, STATE), "unified": True},
    "hybrid, streams": {"layers": (FULL, STATE), "n_rs_seq": 1},
    "none": {"layers": (None,)},
}
COUNTS = st.tuples(*[st.integers(0, 9)] * 3)


def some_rows(memory: Memory, counts: tuple[int, ...], n_shared: int, seed: int) -> CheckedBatch | None:
    """Rows of three sequences in any order, after some that the first two share where these hold the same."""
    batch = Batch(n_pos=memory.n_pos)
    lo, hi = memory.ranges.pos_min, memory.ranges.pos_max
    if n_shared and (lo[0], hi[0]) == (lo[1], hi[1]):
        batch.extend([1] * n_shared, seq={0, 1})
    batch.extend([1] * sum(counts), seq=np.random.default_rng(seed).permutation(np.repeat(range(3), counts)))
    if not len(batch):
        return None
    return check(batch, Limits(n_vocab=9, n_seq_max=3, n_pos=memory.n_pos), memory.ranges)


def placed(memory: Memory, batch: CheckedBatch, n_ubatch: int) -> MemoryPlan[Any] | None:
    """What is asked leaves every byte as it was, be it refused or not."""
    before = memory.columns()
    try:
        plan = memory.init_batch(batch, n_ubatch)
        if isinstance(plan, e.NoSlot):
            assert memory.columns() == before, "a refusal changes nothing"
            retried = memory.retry_batch(batch, n_ubatch)
            assert retried is None or isinstance(retried, MemoryPlan)
            plan = retried or plan
    except (e.SplitError, e.BatchError):
        plan = None
    assert memory.columns() == before
    return plan if isinstance(plan, MemoryPlan) else None


@pytest.mark.parametrize("kind", MANY)
@how(max_examples=250, deadline=None)
@given(
    past=st.lists(COUNTS, max_size=3),
    gone=st.sampled_from([None, 0, 1, 2]),
    counts=COUNTS,
    n_shared=st.sampled_from([0, 0, 2]),
    n_pos=st.sampled_from([1, 4]),
    n_more=st.integers(1, 8),
    n_cells=st.integers(6, 24),
    seed=st.integers(0, 999),
)
def test_placing_and_undoing_leave_every_byte(
    kind: str,
    past: list[tuple[int, ...]],
    gone: int | None,
    counts: tuple[int, ...],
    n_shared: int,
    n_pos: int,
    n_more: int,
    n_cells: int,
    seed: int,
) -> None:
    """2,750 batches in all, on memories with a past."""
    n_rs_seq = MANY[kind].get("n_rs_seq", 0)
    n_ubatch = n_more + (1 + n_rs_seq if n_rs_seq else 0)
    sizes = {"n_cells": n_cells, "n_seq_max": 3, "unified": False, "n_ubatch": n_ubatch, "n_pos": n_pos}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_pair, "WINDOW_PAD", 1)
        memory = make_memory(MemorySettings(**{**sizes, **MANY[kind]}))
    for i, some in enumerate(past):
        batch = some_rows(memory, some, n_shared, seed + i)
        plan = None if batch is None else placed(memory, batch, n_ubatch)
        for ubatch, slot in () if plan is None else zip(plan.ubatches, plan.slots, strict=True):
            memory.apply(ubatch, slot)
    if gone is not None:
        memory.rm(gone)
    batch = some_rows(memory, counts, n_shared, seed)
    plan = None if batch is None else placed(memory, batch, n_ubatch)
    if batch is None or plan is None:
        return
    assert sorted(i for u in plan.ubatches for i in u.batch_idxs.tolist()) == list(range(batch.n_tokens))
    assert all(u.n_tokens <= n_ubatch for u in plan.ubatches)
    before, mark = memory.columns(), memory.mark()
    for n in range(len(plan.ubatches) + 1):  # undone after each of its ubatches
        for ubatch, slot in zip(plan.ubatches[:n], plan.slots[:n], strict=True):
            memory.apply(ubatch, slot)
            memory.check()
        assert n == 0 or kind == "none" or memory.columns() != before
        memory.undo(mark, plan.slots)
        assert memory.columns() == before


# ---- which kind ------------------------------------------------------------------------------------------


def test_the_layers_choose_the_kind() -> None:
    assert kind_of(settings(FULL, None, FULL)).name == "kv"
    assert kind_of(settings(None, None)).name == "none"
    with pytest.raises(e.ContextError, match="no memory keeps kv_swa and rs"):
        kind_of(settings(STATE, WINDOW))


def test_parts_name_layers_and_cells() -> None:
    (part,) = cache_parts(settings(FULL, None, FULL))
    assert (part.name, part.n_stream, part.n_cells, list(part.layers)) == ("kv", 3, 16, [0, 2])
    assert part.n_values == 3 * 16 * 2 * 32
    assert make_memory(settings(FULL, None, FULL)).parts == (part,)
    assert cache_parts(settings(None)) == ()


@pytest.mark.parametrize(("sizes", "error"), [({"n_seq_max": 257}, e.BadSeqCount), ({"n_cells": 0}, e.ContextError)])
def test_sizes_that_cannot_be(sizes: dict[str, int], error: type[Exception]) -> None:
    with pytest.raises(error):
        settings(FULL, **sizes)


def test_without_memory_whole_sequences_share_ubatches() -> None:
    memory = make_memory(settings(None, None))
    batch = Batch()
    batch.extend([1] * 9, seq=[2, 0, 2, 1, 0, 2, 2, 1, 2])
    plan = memory.init_batch(check(batch, Limits(n_vocab=9, n_seq_max=3), memory.ranges), 7)
    assert not isinstance(plan, e.NoSlot)
    assert [u.n_tokens for u in plan.ubatches] == [7, 2]
    views = memory.views(plan.ubatches[0], plan.slots[0])
    assert views.kv is None and views.rs is None and views.seqs is not None
    assert views.seqs.n_seqs == 2
    for i, index in enumerate(views.seqs.row_seq):
        assert plan.ubatches[0].seq_id_unq[index] == plan.ubatches[0].row_seq_ids(i)[0]
    assert (np.diff(views.seqs.row_seq) != 0).sum() == 1, "rows of a sequence are neighbours"
    memory.apply(plan.ubatches[0], plan.slots[0])
    assert memory.pos_max(2) == -1 and memory.rm(2) and memory.rm(-1)
    with pytest.raises(e.SequenceError, match="sequence 3 is outside"):
        memory.cp(0, 3)


def test_without_memory_a_long_sequence_is_refused() -> None:
    memory = NoMemory(n_seq_max=1)
    batch = Batch()
    batch.extend([1] * 9)
    with pytest.raises(e.SequenceTooLong, match="n_ubatch is 8"):
        memory.init_batch(check(batch, Limits(n_vocab=9, n_seq_max=1), memory.ranges), 8)
