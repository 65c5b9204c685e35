"""Which memory serves which layers, and what the simplest kind answers."""

from __future__ import annotations

import numpy as np
import pytest

from polyseq import errors as e
from polyseq.batch import Batch, Limits, check
from polyseq.memory import KvLayer, MemorySettings, RsLayer, cache_parts, kind_of, make_memory
from polyseq.memory.no_memory import NoMemory

FULL, WINDOW = KvLayer(2, 8, 8), KvLayer(2, 8, 8, n_swa=4)
STATE = RsLayer((("conv", (6, 3)), ("ssm", (6, 2))))


def settings(*layers: KvLayer | RsLayer | None, **sizes: int) -> MemorySettings:
    return MemorySettings(layers=layers, **{"n_cells": 16, "n_seq_max": 3, "unified": False, "n_ubatch": 8, **sizes})  # type: ignore[arg-type]


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
