"""Batches for property tests: any sequences, lengths, orders, shared rows and memory contents."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from polyseq.batch import Batch, CheckedBatch, Limits, SeqRanges, check

N_VOCAB = 1000


@st.composite
def checked_batches(
    draw: st.DrawFn, *, coupled: bool | None = None, max_seqs: int = 6, max_len: int = 12
) -> CheckedBatch:
    """A batch that passes the check. Uncoupled: any interleaving of ragged sequences that may continue a memory.
    Coupled: a tree, rows shared by ever fewer sequences.
    """
    n_seq_max = draw(st.sampled_from([1, 2, 3, 6, 64, 65, 256]))
    if draw(st.booleans()) if coupled is None else coupled:
        return _tree(draw, max(n_seq_max, 2), max_len)
    ids = draw(st.lists(st.integers(0, n_seq_max - 1), min_size=1, max_size=max_seqs, unique=True))
    lengths = draw(st.lists(st.integers(1, max_len), min_size=len(ids), max_size=len(ids)))
    held = np.full(n_seq_max, -1, np.int32)
    for s in ids:
        held[s] = draw(st.integers(-1, 20))
    seq = np.repeat(ids, lengths)
    if draw(st.booleans()):
        seq = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).permutation(seq)
    output = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).random(len(seq)) < draw(
        st.sampled_from([0, 0.3, 1])
    )
    batch = Batch()
    batch.extend(np.arange(len(seq)) % N_VOCAB, seq=seq, output=output)
    ranges = SeqRanges(np.minimum(held, 0), held)
    return check(batch, Limits(n_vocab=N_VOCAB, n_seq_max=n_seq_max), ranges)


def _tree(draw: st.DrawFn, n_seq_max: int, max_len: int) -> CheckedBatch:
    n_seqs = draw(st.integers(2, min(n_seq_max, 8)))
    batch = Batch()
    groups = [frozenset(range(n_seqs))]
    while groups:
        i = draw(st.integers(0, len(groups) - 1))
        group = groups.pop(i)
        n = draw(st.integers(1, max(1, max_len // 3)))
        batch.extend([1] * n, seq=set(group), output=draw(st.booleans()))
        if len(group) > 1 and draw(st.booleans()):
            cut = draw(st.integers(1, len(group) - 1))
            members = sorted(group)
            groups += [frozenset(members[:cut]), frozenset(members[cut:])]
    return check(batch, Limits(n_vocab=N_VOCAB, n_seq_max=n_seq_max), SeqRanges.empty(n_seq_max))
