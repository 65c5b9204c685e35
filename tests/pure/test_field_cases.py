"""What people who run batched inference really hit, for every kind of memory: one test per kind of fault (F..).

Faults that only one kind can have are tested beside that kind; here is what all of them must get right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from polyseq import Context
from polyseq import errors as e
from polyseq.memory import window_pair
from test_atomic import KINDS, context, logits

STATES = [kind for kind in KINDS if kind.startswith(("recurrent", "hybrid"))]
CELLS = [kind for kind in KINDS if kind not in STATES]
UNIFIED = [kind for kind in KINDS if "unified" in kind]
SEPARATE = [kind for kind in KINDS if kind not in UNIFIED]
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_pair, "WINDOW_PAD", 1)


def solo(kind: str, tokens: list[int]) -> NDArray[np.float32]:
    return logits(context(kind), tokens)


def close(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


def refused(ctx: Context, error: type[Exception], match: str, *rows: tuple[list[int], Any, list[int] | None]) -> None:
    """A batch of (tokens, sequences, positions) is refused with that said, and nothing has changed."""
    batch, before = ctx.batch(), ctx.memory.columns()
    for tokens, seq, pos in rows:
        batch.extend(tokens, seq=seq, pos=pos, output=True)
    with pytest.raises(error, match=match):
        ctx.decode(batch)
    assert ctx.memory.columns() == before


# F04: a sequence whose caller lost count is named with both positions; the other one goes on alone.
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_position_harms_nobody_else(kind: str) -> None:
    ctx = context(kind)
    logits(ctx, TOKENS[:10], TOKENS[:5])
    refused(ctx, e.MemoryPosition, "sequence 1 .*position 8.*up to 4", ([7], 0, [10]), ([7], 1, [8]))
    close(logits(ctx, [7]), solo(kind, [*TOKENS[:10], 7])[-1:])


# F06: -1 means every sequence, in every memory that can take that range out of all of them.
@pytest.mark.parametrize("kind", KINDS)
def test_all_sequences_at_once(kind: str) -> None:
    ctx = context(kind)
    logits(ctx, TOKENS[:4], TOKENS[4:8])
    if kind in CELLS:
        assert ctx.memory.rm(-1, 2, -1)
        assert [ctx.memory.pos_max(s) for s in range(2)] == [1, 1]
        close(logits(ctx, [], [7]), solo(kind, [*TOKENS[4:6], 7])[-1:])
    else:
        with pytest.raises(e.SequenceError, match="sequence 0 is a running state"):
            ctx.memory.rm(-1, 2, -1)
        assert [ctx.memory.pos_max(s) for s in range(2)] == [3, 3]
    assert ctx.memory.rm(-1)
    assert [ctx.memory.pos_max(s) for s in range(2)] == [-1, -1]
    with pytest.raises(e.SequenceError, match="outside"):
        ctx.memory.rm(2)


# F12, F17: a prompt shared by answers. One place decides for every memory: unified takes it, else the error says so.
@pytest.mark.parametrize("kind", KINDS)
def test_answers_after_one_shared_prompt(kind: str) -> None:
    ctx = context(kind)
    if kind in SEPARATE:
        refused(ctx, e.CoupledSequences, "unified|own", (TOKENS[:4], {0, 1}, None))
        return
    batch = ctx.batch()
    batch.extend(TOKENS[:4], seq={0, 1}, output=False)
    batch.extend([7, 8], seq=0, pos=[4, 5], output=True)
    batch.extend([9, 2], seq=1, pos=[4, 5], output=True)
    found = ctx.decode(batch).all_logits()
    close(found[:2], solo(kind, [*TOKENS[:4], 7, 8])[-2:])
    close(found[2:], solo(kind, [*TOKENS[:4], 9, 2])[-2:])


# F13: the rows after which a state is kept come in one ubatch, whatever the lengths.
@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("n_keep", [1, 2, 3])
def test_no_cut_inside_the_last_rows(kind: str, n_keep: int) -> None:
    for n_ubatch in range(n_keep + 2, 9):
        for lengths in [(5, 0), (2, 3), (3, 3), (6, 1), (12, 7), (1, 12)]:
            ctx = context(kind, n_ubatch=n_ubatch, n_rs_seq=n_keep)
            batch = ctx.batch()
            for s, n in enumerate(lengths):
                batch.extend(TOKENS[:n], seq=s)
            ubatches = ctx.plan(batch).ubatches
            rows = [row for u in ubatches for row in u.batch_idxs.tolist()]
            assert sorted(rows) == list(range(sum(lengths)))
            for s, n in enumerate(lengths):
                tail = set(range(max(0, n - 1 - n_keep), n))
                inside = [tail & set(u.pos[0][u.first_seq == s].tolist()) for u in ubatches]
                assert [part for part in inside if part] == ([tail] if tail else [])


# F14: a long prompt joins a sequence that has left its window behind; the window cache must not be in the way.
@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_joins_a_long_sequence(kind: str) -> None:
    ctx = context(kind)
    logits(ctx, TOKENS[:20])
    found = logits(ctx, [7], TOKENS[:8])
    close(found[:1], solo(kind, [*TOKENS[:20], 7])[-1:])
    close(found[1:], solo(kind, TOKENS[:8]))


# F19, F31: no room is said with numbers, at once; nobody else is harmed, and what would fit still does.
@pytest.mark.parametrize("kind", KINDS)
def test_a_full_memory(kind: str) -> None:
    ctx = context(kind, n_ctx=24, n_batch=24)
    logits(ctx, TOKENS[:12], [] if "unified" in kind else TOKENS[:3])
    if kind == "recurrent":
        close(logits(ctx, TOKENS[12:24]), solo(kind, TOKENS[:24])[12:])  # a state is never full
        return
    if kind in UNIFIED:
        logits(ctx, [], TOKENS[:10])
        refused(ctx, e.NoSlot, "needs 3 cells.*2 of 24 are free", ([7, 7, 7], 0, None))
        close(logits(ctx, [7, 7]), solo(kind, [*TOKENS[:12], 7, 7])[-2:])
    refused(ctx, e.NoSlot, "needs 1 cell.*0 of (24|12) are free", ([7], 0, None))
    if kind not in UNIFIED:
        close(logits(ctx, [], [7]), solo(kind, [*TOKENS[:3], 7])[-1:])


# F26: what memory holds is the truth. A sequence that went is read anew, from its start.
@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_that_went_is_read_anew(kind: str) -> None:
    ctx = context(kind)
    logits(ctx, TOKENS[:20], TOKENS[:3])
    ctx.memory.rm(0)
    assert ctx.memory.reusable(0, 15).n == 0
    assert (ctx.memory.pos_min(0), ctx.memory.pos_max(0)) == (-1, -1)
    found = logits(ctx, TOKENS[:15], [7])
    close(found[:15], solo(kind, TOKENS[:15]))
    close(found[15:], solo(kind, [*TOKENS[:3], 7])[-1:])


# F27: ids are used again while another sequence goes on; nothing of the one that went is seen, nothing is written late.
@pytest.mark.parametrize("kind", KINDS)
def test_an_id_is_used_again(kind: str) -> None:
    ctx = context(kind)
    logits(ctx, TOKENS[:6])
    for i in range(12):
        length = 1 + 3 * i % 11
        found = logits(ctx, [TOKENS[6 + i]], TOKENS[i : i + length])
        close(found[:1], solo(kind, TOKENS[: 7 + i])[-1:])
        close(found[1:], solo(kind, TOKENS[i : i + length]))
        ctx.memory.rm(1)


# F41: a row does not depend on how long its neighbour is.
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [(12, 3), (9, 3), (3, 12), (1, 20)])
def test_neighbours_of_other_lengths(kind: str, lengths: tuple[int, int]) -> None:
    a, b = (TOKENS[:n] for n in lengths)
    close(logits(context(kind), a, b), np.concatenate((solo(kind, a), solo(kind, b))))


# F51: a second probe at one position needs the first one removed; where that is possible it equals a fresh run.
@pytest.mark.parametrize("kind", KINDS)
def test_two_probes_at_one_position(kind: str) -> None:
    ctx = context(kind, n_rs_seq=1)
    logits(ctx, TOKENS[:8])
    logits(ctx, [10])
    refused(ctx, e.MemoryPosition, "position 8", ([11], 0, [8]))
    assert ctx.memory.rm(0, 8, -1)
    close(logits(ctx, [11]), solo(kind, [*TOKENS[:8], 11])[-1:])


# F53: part of a sequence, copied: shared cells, or an error; writes to one never show in the other.
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_a_part(kind: str) -> None:
    ctx = context(kind, n_rs_seq=2)
    logits(ctx, TOKENS[:8])
    if kind in ("streams", "window, streams", "hybrid, streams"):
        before = ctx.memory.columns()
        with pytest.raises(e.SequenceError, match="needs a unified cache"):
            ctx.memory.cp(0, 1, 0, 7)
        assert ctx.memory.columns() == before
        return
    ctx.memory.cp(0, 1, 0, 7)
    found = logits(ctx, [10], [11, 12])
    close(found[:1], solo(kind, [*TOKENS[:8], 10])[-1:])
    close(found[1:], solo(kind, [*TOKENS[:7], 11, 12])[-2:])


# F55, F57: going back further than the memory reaches is said before; what it says can be gone back to can.
@pytest.mark.parametrize("kind", KINDS)
def test_going_back(kind: str) -> None:
    ctx = context(kind, n_rs_seq=2)
    logits(ctx, TOKENS[:20])
    assert ctx.memory.reusable(0, 18).n == 18
    ctx.memory.rm(0, 18, -1)
    close(logits(ctx, [10]), solo(kind, [*TOKENS[:18], 10])[-1:])
    far = ctx.memory.reusable(0, 6)
    assert far.n == 6 if kind in ("unified", "streams") else (far.n == 0 and far.why)
    if kind.startswith("window"):  # told nevertheless to forget: no row is computed from half of its past
        ctx.memory.rm(0, 6, -1)
        refused(ctx, e.SequenceError, "sequence 0 was cut back to position 5.*window from 3 on", ([10], 0, None))
        ctx.memory.rm(0)
        close(logits(ctx, [*TOKENS[:6], 10])[-1:], solo(kind, [*TOKENS[:6], 10])[-1:])
