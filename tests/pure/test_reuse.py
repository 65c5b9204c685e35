"""What can be gone on from, and context shift: answers that hold when tried, refusals that change nothing."""

from __future__ import annotations

import numpy as np
import pytest

from on_backend import exact
from polyseq import errors as e
from polyseq.memory import window_pair
from polyseq.memory.no_memory import NoMemory
from test_atomic import KINDS, PAST, context, logits
from tiny import tiny_llama
from tiny_kinds import tiny_mamba


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch, on_each_backend: None) -> None:
    monkeypatch.setattr(window_pair, "WINDOW_PAD", 1)


TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said_to_be_reusable_is(kind: str) -> None:
    for wanted in (0, 1, 4, 9, 15, 18, 19, 20, 25):
        ctx, fresh = context(kind), context(kind)
        logits(ctx, TOKENS, PAST[1])
        found = ctx.memory.reusable(0, wanted)
        assert (found.n == wanted) == (not found.why)
        if kind in ("unified", "streams"):
            assert found.n == min(wanted, 20)
        if found.n == 0:
            continue
        ctx.memory.rm(0, found.n, -1)
        wanted_logits = logits(fresh, [*TOKENS[: found.n], 11, 12])[-2:]
        np.testing.assert_allclose(logits(ctx, [11, 12]), wanted_logits, rtol=0, atol=1e-4)


def test_why_a_beginning_cannot_be_reused() -> None:
    ctx = context("window, streams")
    logits(ctx, TOKENS)
    assert ctx.memory.reusable(0, 20).n == 20
    found = ctx.memory.reusable(0, 9)
    assert found.n == 0 and "needs its window 6..8, of which 6 was let go" in found.why
    state = exact(tiny_mamba().model, n_ctx=64, n_ubatch=8, n_rs_seq=2)
    logits(state, TOKENS)
    assert state.memory.reusable(0, 19).n == 19
    found = state.memory.reusable(0, 9)
    assert found.n == 0 and "a state after positions 19, 18, 17 only" in found.why
    full = context("streams")
    logits(full, TOKENS)
    full.memory.rm(0, 5, 7)
    assert full.memory.reusable(0, 9).n == 5 and "position 5" in full.memory.reusable(0, 9).why
    assert NoMemory(n_seq_max=1).reusable(0, 3).why


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize(("n_keep", "n_discard", "gone"), [(0, None, 10), (4, None, 8), (4, 3, 3), (1, 19, 19)])
def test_a_shifted_context_is_as_if_what_is_gone_was_never_read(
    unified: bool, n_keep: int, n_discard: int | None, gone: int
) -> None:
    """With one layer K and V depend on their own token alone, so that this is exact."""
    model = tiny_llama(n_layer=1).model
    ctx, fresh = (exact(model, n_ctx=96, n_seq_max=2, n_ubatch=8, unified=unified) for _ in range(2))
    logits(ctx, TOKENS, PAST[1])
    assert ctx.shift_context(0, n_keep=n_keep, n_discard=n_discard) == gone
    assert ctx.memory.pos_max(0) == 19 - gone
    wanted = logits(fresh, [*TOKENS[:n_keep], *TOKENS[n_keep + gone :], 7, 8])[-2:]
    np.testing.assert_allclose(logits(ctx, [7, 8]), wanted, rtol=0, atol=1e-4)
    assert ctx.memory.pos_max(1) == len(PAST[1]) - 1


@pytest.mark.parametrize("unified", [False, True])
def test_a_window_is_shifted_where_it_does_not_reach_over_the_gap(unified: bool) -> None:
    ctx = context("window, unified" if unified else "window, streams")
    logits(ctx, TOKENS, PAST[1])
    before = ctx.memory.columns()
    with pytest.raises(e.CapabilityError, match=r"holds positions from 1\d on, but after the gap .* see 3\.\.4 too"):
        ctx.shift_context(0, n_keep=5, n_discard=14)
    assert ctx.memory.columns() == before
    assert ctx.shift_context(0, n_keep=5) == 7
    assert ctx.memory.reusable(0, 13).n == 13
    assert np.isfinite(logits(ctx, [1, 2, 3])).all()
    ctx.memory.check()


@pytest.mark.parametrize("kind", ["recurrent", "hybrid, unified", "hybrid, streams", "unified"])
def test_a_shift_that_cannot_be_is_refused(kind: str) -> None:
    ctx = context(kind)
    logits(ctx, TOKENS)
    if kind == "unified":
        ctx.memory.cp(0, 1)
    before = ctx.memory.columns()
    match = "shares cells from position 10 on" if kind == "unified" else "running state holds its whole past"
    with pytest.raises(e.CapabilityError, match=match):
        ctx.shift_context(0)
    for sizes in ({"n_keep": 20}, {"n_keep": -1}, {"n_discard": 0}, {"n_keep": 3, "n_discard": 18}):
        with pytest.raises(e.CapabilityError, match="holds 20 positions"):
            ctx.shift_context(0, **sizes)
    assert ctx.memory.columns() == before


@pytest.mark.parametrize("kind", KINDS)
def test_compaction_changes_nothing_but_places(kind: str) -> None:
    ctx, other = context(kind), context(kind)
    for c in (ctx, other):
        for i in range(4):  # rows of both in turn, so that removing one leaves gaps
            logits(c, TOKENS[i : i + 4], PAST[1][:3])
        c.memory.rm(1)
        logits(c, [5])
    n_moved = ctx.optimize()
    assert (n_moved > 0) == ("unified" in kind)
    ctx.memory.check()
    assert ctx.optimize() == 0
    for stream in ctx.memory.map().streams:
        if "recurrent" not in kind and stream.n_cells > 16:
            assert all(not run.seq_ids for run in stream.runs[1:] if run.first >= stream.used)
    for tokens in ([7, 8], [9] * 5):
        np.testing.assert_allclose(logits(ctx, tokens), logits(other, tokens), rtol=0, atol=1e-4)
