"""A window cache gives what a cache of every position gives: any n_ubatch, prompts to three windows, four sequences."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from polyseq import Context, Model
from polyseq.errors import PolyseqWarning
from polyseq.memory import window_pair
from tiny_kinds import N_VOCAB, tiny_gemma3

N_SWA, N_SEQS, N_CTX_SEQ = 8, 4, 32
MODEL = tiny_gemma3(n_layer=4, n_swa=N_SWA).model
TOLERANCE = 1e-4
UBATCHES = [1, 2, 4, 8, 64]

Calls = list[list[list[int]]]  # [call][sequence] tokens


def context(
    model: Model, n_ubatch: int, *, unified: bool, pad: int = 1, n_ctx_seq: int = N_CTX_SEQ, swa_full: bool = False
) -> Context:
    """`pad` 1: just the window and an ubatch; `swa_full`: nothing is ever let go."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(window_pair, "WINDOW_PAD", pad)
        warnings.simplefilter("ignore", PolyseqWarning)
        return Context(
            model,
            n_ctx=N_SEQS * n_ctx_seq,
            n_seq_max=N_SEQS,
            n_batch=N_SEQS * n_ctx_seq,
            n_ubatch=n_ubatch,
            unified=unified,
            swa_full=swa_full,
            backend="reference",
        )


def decoded(ctx: Context, calls: Calls) -> Iterator[NDArray[np.float32]]:
    """Logits of every row, call by call."""
    for call in calls:
        batch = ctx.batch()
        for seq_id, tokens in enumerate(call):
            if tokens:
                batch.extend(tokens, seq=seq_id, output=True)
        if len(batch):
            yield ctx.decode(batch).all_logits()


def window_cells(ctx: Context) -> int:
    return next(part.n_cells for part in ctx.memory.parts if part.name == "kv_swa")


def assert_equal(n_ubatch: int, calls: Calls, *, unified: bool) -> None:
    small = context(MODEL, n_ubatch, unified=unified)
    full = context(MODEL, n_ubatch, unified=unified, swa_full=True)
    assert window_cells(full) == full.n_ctx_seq
    if n_ubatch <= N_SWA:
        assert window_cells(small) < window_cells(full)
    for ours, theirs in zip(decoded(small, calls), decoded(full, calls), strict=True):
        assert np.abs(ours - theirs).max() < TOLERANCE
    small.memory.check()


def random_tokens(rng: np.random.Generator, n: int) -> list[int]:
    return rng.integers(0, N_VOCAB, n).tolist()


@pytest.mark.parametrize("unified", [False, True], ids=["streams", "unified"])
@pytest.mark.parametrize("n_ubatch", UBATCHES)
def test_prompts_of_one_sequence(n_ubatch: int, unified: bool) -> None:
    rng = np.random.default_rng(n_ubatch)
    for n in (1, N_SWA - 1, N_SWA, N_SWA + 1, 2 * N_SWA, 3 * N_SWA):
        assert_equal(n_ubatch, [[random_tokens(rng, n)], [random_tokens(rng, 1)]], unified=unified)


@pytest.mark.parametrize("unified", [False, True], ids=["streams", "unified"])
@pytest.mark.parametrize("n_ubatch", UBATCHES)
def test_four_sequences_of_mixed_lengths(n_ubatch: int, unified: bool) -> None:
    """Prompts of all lengths at once, then all of them decoding, then prompts beside decoding sequences."""
    rng = np.random.default_rng(n_ubatch)
    lengths = [(3 * N_SWA, 1, N_SWA, N_SWA + 3), (1, 1, 1, 1), (1, 2 * N_SWA, 1, 5), (1, 1, 1, 1), (4, 0, 9, 1)]
    assert_equal(n_ubatch, [[random_tokens(rng, n) for n in call] for call in lengths], unified=unified)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(UBATCHES),
    st.booleans(),
    st.lists(st.tuples(*[st.integers(0, N_SWA)] * N_SEQS), min_size=1, max_size=3),
    st.integers(0, 1 << 16),
)
def test_any_calls(n_ubatch: int, unified: bool, lengths: list[tuple[int, ...]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert_equal(n_ubatch, [[random_tokens(rng, n) for n in call] for call in lengths], unified=unified)


@pytest.mark.parametrize("n_ubatch", [4, 64])
def test_cells_are_padded_and_that_changes_nothing(n_ubatch: int) -> None:
    """With a window near the padding's width: cells are let go without anything being patched but the full cache."""
    n_swa, n_ctx_seq = 250, 800
    model = tiny_gemma3(n_layer=3, n_swa=n_swa).model
    rng = np.random.default_rng(0)
    calls = [[random_tokens(rng, n) for n in call] for call in [(3 * n_swa, 1, n_swa + 7, 60), (1, 9, 1, 1)]]
    small = context(model, n_ubatch, unified=False, pad=window_pair.WINDOW_PAD, n_ctx_seq=n_ctx_seq)
    full = context(model, n_ubatch, unified=False, n_ctx_seq=n_ctx_seq, swa_full=True)
    assert (window_cells(small), window_cells(full)) == (256 if n_ubatch == 4 else 512, n_ctx_seq)
    for ours, theirs in zip(decoded(small, calls), decoded(full, calls), strict=True):
        assert np.abs(ours - theirs).max() < TOLERANCE
