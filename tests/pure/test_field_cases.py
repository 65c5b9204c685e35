"""What people who run batched inference really hit, for every kind of memory: one test per kind of fault (F..).

Faults that only one kind can have are tested beside that kind; here is what all of them must get right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from on_backend import exact
from polyseq import Context, FlatBatch
from polyseq import errors as e
from polyseq.batch import Limits, check
from polyseq.memory import KvCache, MemoryPlan, window_pair
from test_atomic import KINDS, context, logits
from tiny_kinds import tiny_gemma3

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


# F10: with images the number of rows and the next position differ; what is cut off is told by positions.
@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("n_swa", [0, 4])
def test_rows_and_positions_are_counted_apart(unified: bool, n_swa: int) -> None:
    """Three tokens, an image of two by two rows at position 3, and text from position 5 on."""
    pos = [0, 1, 2, 3, 3, 3, 3] + [0, 1, 2, 3, 3, 4, 4] + [0, 1, 2, 3, 4, 3, 4] + [0] * 7  # section by section
    batch = FlatBatch(embd=np.ones((7, 2), np.float32), pos=pos).to_batch(n_pos=4)
    memory = KvCache(n_cells=16, n_seq_max=2, unified=unified, n_pos=4, n_swa=n_swa)
    plan = memory.init_batch(check(batch, Limits(n_vocab=9, n_seq_max=2, n_pos=4, n_embd=2), memory.ranges), 8)
    assert isinstance(plan, MemoryPlan)
    for ubatch, slot in zip(plan.ubatches, plan.slots, strict=True):
        memory.apply(ubatch, slot)
    assert (memory.n_used, memory.pos_max(0)) == (7, 3)
    memory.rm(0, 7, -1)
    assert memory.n_used == 7, "nothing stands at position 7"
    memory.rm(0, 3, -1)
    assert (memory.n_used, memory.pos_max(0)) == (3, 2), "the image goes as a whole"


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


# F23: a saved sequence goes into holes, and goes on as if it had never been away.
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_sequence_goes_into_holes(kind: str) -> None:
    ctx = context(kind, n_ctx=48)
    logits(ctx, TOKENS[:10])
    blob = ctx.save(0)
    ctx.memory.rm(0)
    for i in range(6):  # in turn, so that a unified cache has holes once sequence 0 goes
        logits(ctx, [1 + i], [11 + i])
    ctx.memory.rm(0)
    ctx.restore(blob, 0)
    ctx.memory.check()
    found = logits(ctx, [7, 8], [9])
    close(found[:2], solo(kind, [*TOKENS[:10], 7, 8])[-2:])
    close(found[2:], solo(kind, [*range(11, 17), 9])[-1:])


# F24: a blob with a poisoned middle or without its end is refused before a byte of it is written.
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["poisoned", "cut"])
def test_a_refused_blob_leaves_nothing_behind(kind: str, how: str) -> None:
    ctx = context(kind)
    logits(ctx, TOKENS[:8], TOKENS[:5])
    blob = ctx.save(1)
    middle = len(blob) * 3 // 4 // 4 * 4
    bad = blob[:middle] + (np.full(8, np.nan, np.float32).tobytes() + blob[middle + 32 :] if how == "poisoned" else b"")
    ctx.memory.rm(1)
    before = ctx.memory.columns()
    with pytest.raises(e.SavedStateError):
        ctx.restore(bad, 1)
    assert ctx.memory.columns() == before
    found = logits(ctx, [7], TOKENS[:3])
    close(found[:1], solo(kind, [*TOKENS[:8], 7])[-1:])
    close(found[1:], solo(kind, TOKENS[:3]))
    ctx.memory.rm(1)
    ctx.restore(blob, 1)
    close(logits(ctx, [], [7]), solo(kind, [*TOKENS[:5], 7])[-1:])


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


# F55: with a window cache of full size everything can be gone back to.
@pytest.mark.parametrize("kind", [kind for kind in CELLS if kind.startswith("window")])
@pytest.mark.usefixtures("on_each_backend")
def test_going_back_behind_a_window_of_full_size(kind: str) -> None:
    ctx = context(kind, swa_full=True)
    logits(ctx, TOKENS[:20], TOKENS[:3])
    assert ctx.memory.reusable(0, 6).n == 6
    ctx.memory.rm(0, 6, -1)
    found = logits(ctx, [10, 11], [7])
    close(found[:2], solo(kind, [*TOKENS[:6], 10, 11])[-2:])
    close(found[2:], solo(kind, [*TOKENS[:3], 7])[-1:])


# F58: after a context shift positions, K of each layer by its own RoPE, and the window's mask have all followed. With
# one layer K and V depend on their own token alone, so that the truth is what is left, read at its new positions.
@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("seen", ["the window", "everything"])
def test_a_shifted_sequence_equals_its_rest_read_anew(unified: bool, seen: str) -> None:
    model = tiny_gemma3(n_layer=1, n_swa=4, pattern=2 if seen == "the window" else 1).model
    ctx, fresh = (exact(model, n_ctx=96, n_seq_max=2, n_ubatch=4, unified=unified) for _ in range(2))
    logits(ctx, TOKENS[:20], TOKENS[:6])
    assert ctx.shift_context(0, n_keep=4, n_discard=8) == 8
    assert ctx.memory.pos_max(0) == 11
    rest = [*TOKENS[:4], *TOKENS[12:20]]
    found = logits(ctx, [7, 8, 9, 1, 2], [7])
    close(found[:5], logits(fresh, [*rest, 7, 8, 9, 1, 2])[-5:])
    close(found[5:], logits(fresh, [], [*TOKENS[:6], 7])[-1:])


@pytest.mark.parametrize("kind", STATES)
def test_a_running_state_is_not_shifted(kind: str) -> None:
    ctx = context(kind)
    logits(ctx, TOKENS[:10])
    before = ctx.memory.columns()
    with pytest.raises(e.CapabilityError, match="running state holds its whole past"):
        ctx.shift_context(0)
    assert ctx.memory.columns() == before
    close(logits(ctx, [7]), solo(kind, [*TOKENS[:10], 7])[-1:])
