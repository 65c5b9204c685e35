"""Batches for property tests: any sequences, lengths, orders, contents, shared rows and memory contents."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from polyseq.batch import Batch, CheckedBatch, Limits, SeqRanges, check

N_VOCAB, N_EMBD, N_STATE = 1000, 3, 2
CONTENTS = ["token", "embd", "both", "mixed"]


@st.composite
def checked_batches(
    draw: st.DrawFn, *, coupled: bool | None = None, max_seqs: int = 6, max_len: int = 12, text: bool = False
) -> CheckedBatch:
    """A batch that passes the check: tokens, embeddings, both or (uncoupled) a mixture, perhaps with hidden states,
    with positions of one section or of four; or with `text` tokens and one section. Uncoupled: any interleaving of
    ragged sequences that may continue a memory. Coupled: a tree, rows shared by ever fewer sequences.
    """
    n_seq_max = draw(st.sampled_from([1, 2, 3, 6, 64, 65, 256]))
    contents = ["token"] if text else CONTENTS
    batch = Batch(n_pos=1 if text else draw(st.sampled_from([1, 4])))
    with_state = not text and draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.booleans()) if coupled is None else coupled:
        content = draw(st.sampled_from([c for c in contents if c != "mixed"]))
        return _tree(draw, batch, max(n_seq_max, 2), max_len, rng, content, with_state)
    ids = draw(st.lists(st.integers(0, n_seq_max - 1), min_size=1, max_size=max_seqs, unique=True))
    lengths = draw(st.lists(st.integers(1, max_len), min_size=len(ids), max_size=len(ids)))
    held = np.full(n_seq_max, -1, np.int32)
    for s in ids:
        held[s] = draw(st.integers(-1, 20))
    seq = np.repeat(ids, lengths)
    if draw(st.booleans()):
        seq = rng.permutation(seq)
    output = rng.random(len(seq)) < draw(st.sampled_from([0, 0.3, 1]))
    content = draw(st.sampled_from(contents))
    of_row = rng.choice(["token", "embd"], len(seq)) if content == "mixed" else np.full(len(seq), content)
    pos = _positions(batch.n_pos, seq, of_row == "embd", held, rng)
    for kind, rows in _runs(of_row):
        given = None if pos is None or kind != "embd" else pos[:, rows]
        batch.extend(**_columns(kind, len(seq[rows]), rng, with_state), seq=seq[rows], output=output[rows], pos=given)
    return _checked(batch, n_seq_max, SeqRanges(np.minimum(held, 0), held))


def _runs(of_row: NDArray[np.str_]) -> list[tuple[str, slice]]:
    """Rows of one content after each other."""
    bounds = [0, *(np.flatnonzero(of_row[1:] != of_row[:-1]) + 1).tolist(), len(of_row)]
    return [(str(of_row[a]), slice(a, b)) for a, b in pairwise(bounds)]


def _columns(kind: str, n: int, rng: np.random.Generator, with_state: bool) -> dict[str, Any]:
    return {
        "tokens": rng.integers(0, N_VOCAB, n) if kind != "embd" else None,
        "embd": rng.random((n, N_EMBD)) if kind != "token" else None,
        "state": rng.random((n, N_STATE)) if with_state else None,
    }


def _positions(
    n_pos: int, seq: NDArray[np.int64], is_embd: NDArray[np.bool_], held: NDArray[np.int32], rng: np.random.Generator
) -> NDArray[np.int32] | None:
    """[n_pos, n], every section of embedding rows: the first may stand still or jump, the others are anything."""
    if n_pos == 1:
        return None
    last = held.copy()
    pos = rng.integers(0, 100, (n_pos, len(seq))).astype(np.int32)
    for i, s in enumerate(seq):
        last[s] = max(last[s], 0) + rng.integers(0, 3) if is_embd[i] else last[s] + 1
        pos[0, i] = last[s]
    return pos


def _tree(
    draw: st.DrawFn,
    batch: Batch,
    n_seq_max: int,
    max_len: int,
    rng: np.random.Generator,
    content: str,
    with_state: bool,
) -> CheckedBatch:
    n_seqs = draw(st.integers(2, min(n_seq_max, 8)))
    groups = [frozenset(range(n_seqs))]
    while groups:
        i = draw(st.integers(0, len(groups) - 1))
        group = groups.pop(i)
        n = draw(st.integers(1, max(1, max_len // 3)))
        batch.extend(**_columns(content, n, rng, with_state), seq=set(group), output=draw(st.booleans()))
        if len(group) > 1 and draw(st.booleans()):
            cut = draw(st.integers(1, len(group) - 1))
            members = sorted(group)
            groups += [frozenset(members[:cut]), frozenset(members[cut:])]
    return _checked(batch, n_seq_max, SeqRanges.empty(n_seq_max))


def _checked(batch: Batch, n_seq_max: int, ranges: SeqRanges) -> CheckedBatch:
    limits = Limits(n_vocab=N_VOCAB, n_seq_max=n_seq_max, n_pos=batch.n_pos, n_embd=N_EMBD, allow_mixed=True)
    return check(batch, limits, ranges)
