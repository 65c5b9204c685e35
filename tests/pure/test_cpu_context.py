"""Contexts on the cpu backend: the reference's logits, and the same bits however rows are put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from polyseq.backends.cpu.kv.rows import CellRows
from polyseq.context import Context
from polyseq.model import Model
from tiny import tiny_llama
from tiny_kinds import tiny_gemma3

F32 = NDArray[np.float32]
MODEL = tiny_llama(n_layer=2, n_head=6, n_head_kv=2, n_embd=96, n_ff=160, n_vocab=80).model
PROMPTS = [np.arange(1, 1 + n) * (3 + n) % 80 for n in (1, 7, 30, 18)]


def context(model: Model = MODEL, *, backend: str = "cpu", **options: Any) -> Context:
    sizes: dict[str, Any] = {"n_ctx": 256, "n_seq_max": 4, "n_ubatch": 64}
    if backend == "cpu":
        options = {"n_threads": 2, "kv_type": "f32", **options}
    return Context(model, backend=backend, **{**sizes, **options})


def prompts(ctx: Context, tokens: Sequence[NDArray[Any]] = PROMPTS) -> F32:
    """[rows, n_vocab] f32, all prompts in one call."""
    batch = ctx.batch()
    for seq, column in enumerate(tokens):
        batch.extend(column.astype(np.int32), seq=seq, output=True)
    return ctx.decode(batch).all_logits()


def step(ctx: Context, tokens: Sequence[int]) -> F32:
    """[n_seqs, n_vocab] f32, the next token of every sequence."""
    batch = ctx.batch()
    batch.extend(np.array(tokens, np.int32), seq=np.arange(len(tokens)), output=True)
    return ctx.decode(batch).all_logits()


def alone(ctx: Context, column: NDArray[Any], seq: int = 0) -> F32:
    batch = ctx.batch()
    batch.extend(column.astype(np.int32), seq=seq, output=True)
    return ctx.decode(batch).all_logits()


def near(found: F32, wanted: F32, tolerance: float = 2e-5) -> None:
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * max(1.0, float(np.abs(wanted).max())))


@pytest.mark.parametrize("kv_type", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [False, True])
def test_a_shift_that_ends_early_turns_no_key_twice(
    at: int, after: bool, kv_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two streams of two layers are owed a rotation; before or after any of the four is written the call fails."""
    sound, ctx = (context(n_seq_max=2, n_ctx=128, kv_type=kv_type) for _ in range(2))
    for c in (sound, ctx):
        prompts(c, PROMPTS[1:3])
        for seq in (0, 1):
            c.memory.rm(seq, 1, 3)
            c.memory.add(seq, 3, -1, -2)
    put, calls = CellRows.put_values, []

    def failing(self: CellRows, places: NDArray[np.int32], values: F32) -> None:
        calls.append(1)
        if len(calls) != at or after:
            put(self, places, values)
        if len(calls) == at:
            raise MemoryError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(CellRows, "put_values", failing)
        with pytest.raises(MemoryError, match="injected"):
            step(ctx, [5, 6])
    np.testing.assert_array_equal(step(ctx, [5, 6]), step(sound, [5, 6]))


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("n_ubatch", [64, 5])
def test_logits_are_the_reference_s(unified: bool, n_ubatch: int) -> None:
    ours, reference = (context(backend=b, unified=unified, n_ubatch=n_ubatch) for b in ("cpu", "reference"))
    near(prompts(ours), prompts(reference))
    for tokens in ([1, 2, 3, 4], [5, 6, 7, 8]):
        near(step(ours, tokens), step(reference, tokens))


def test_a_window_is_the_reference_s() -> None:
    model = tiny_gemma3().model
    column = [np.arange(40) % model.architecture.hparams.n_vocab]
    near(prompts(context(model), column), prompts(context(model, backend="reference"), column))


@pytest.mark.parametrize(("head_k", "head_v"), [(64, 64), (32, 16), (96, 24), (32, 20), (16, 16), (24, 64)])
@pytest.mark.parametrize("bias", [False, True])
def test_heads_of_every_width_are_the_reference_s(head_k: int, head_v: int, bias: bool) -> None:
    """Heads that are whole panels are turned and written as they are computed, others afterwards."""
    model = tiny_llama(n_head=4, n_head_kv=2, n_embd=96, head_k=head_k, head_v=head_v, n_vocab=80, bias=bias).model
    ours, reference = (context(model, backend=b) for b in ("cpu", "reference"))
    near(prompts(ours), prompts(reference))
    near(step(ours, [1, 2, 3, 4]), step(reference, [1, 2, 3, 4]))


@pytest.mark.parametrize("kv_type", ["bf16", "int8"])
def test_rounded_cells_stay_near(kv_type: str) -> None:
    ours, reference = prompts(context(kv_type=kv_type)), prompts(context(backend="reference"))
    assert np.abs(ours - reference).max() < 0.02 * np.abs(reference).max()


@pytest.mark.parametrize("kv_type", ["f32", "bf16", "int8"])
def test_a_row_has_the_same_bits_alone_and_in_company(kv_type: str) -> None:
    together = prompts(context(kv_type=kv_type))
    start = 0
    for column in PROMPTS:
        assert np.array_equal(alone(context(kv_type=kv_type), column), together[start : start + len(column)])
        start += len(column)


@pytest.mark.parametrize("unified", [False, True])
def test_threads_and_cuts_change_no_bit(unified: bool) -> None:
    wanted = prompts(context(unified=unified, kv_type="bf16"))
    for n_threads, n_ubatch in ((1, 64), (3, 64), (2, 1), (2, 7), (4, 30)):
        ctx = context(unified=unified, kv_type="bf16", n_threads=n_threads, n_ubatch=n_ubatch)
        assert np.array_equal(prompts(ctx), wanted), (n_threads, n_ubatch)


def test_a_long_row_that_threads_share_has_the_same_bits() -> None:
    column = [np.arange(1200) % 80]
    results = [
        prompts(context(n_ctx=1300, n_seq_max=1, n_threads=n, n_ubatch=u), column) for n, u in ((1, 512), (4, 200))
    ]
    assert np.array_equal(*results)


@pytest.mark.parametrize("kv_type", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("model", [MODEL, tiny_gemma3().model], ids=["full", "windows"])
def test_what_is_in_unused_cells_changes_nothing(model: Model, unified: bool, kv_type: str) -> None:
    clean, dirty = (context(model, unified=unified, kv_type=kv_type) for _ in range(2))
    for part in dirty._cache.parts.values():  # type: ignore[attr-defined]
        part.pool[...] = 0xFF  # NaN in f32, in bf16 and in the scales of int8
    columns = [column % model.architecture.hparams.n_vocab for column in PROMPTS]
    assert np.array_equal(prompts(clean, columns), prompts(dirty, columns))
    assert np.array_equal(step(clean, [1, 2, 3, 4]), step(dirty, [1, 2, 3, 4]))


def test_shifted_positions_turn_keys() -> None:
    ours, reference = context(), context(backend="reference")
    for ctx in (ours, reference):
        prompts(ctx)
        ctx.memory.rm(2, 0, 10)
        ctx.memory.add(2, 10, -1, -10)
    near(step(ours, [1, 2, 3, 4]), step(reference, [1, 2, 3, 4]), 1e-4)


@pytest.mark.parametrize("unified", [False, True])
def test_a_copied_sequence_goes_on_alike(unified: bool) -> None:
    ctx = context(unified=unified, kv_type="bf16")
    prompts(ctx, PROMPTS[:3])
    ctx.memory.cp(2, 3)
    rows = step(ctx, [1, 2, 3, 3])
    near(rows[2:3], rows[3:4])
    if not unified:  # there the two go on in different blocks, so their sums have another order
        assert np.array_equal(rows[2], rows[3])


def test_hidden_rows_layers_and_embeddings_in() -> None:
    kept: dict[str, Any] = {"keep_hidden": True, "keep_layers": (0, 1)}
    ours, reference = context(**kept), context(backend="reference", **kept)
    rows = np.random.default_rng(0).standard_normal((9, 96)).astype(np.float32)
    outputs = []
    for ctx in (ours, reference):
        batch = ctx.batch()
        batch.extend(embd=rows, output=True)
        outputs.append(ctx.decode(batch))
    a, b = outputs
    near(a.all_logits(), b.all_logits())
    near(a.all_hidden(), b.all_hidden())
    for il in (0, 1):
        near(a.all_layer(il), b.all_layer(il))


def test_two_contexts_at_once() -> None:
    a, b = context(), context()
    wanted = prompts(context())
    assert np.array_equal(prompts(a), wanted)
    assert np.array_equal(prompts(b), wanted)
    assert np.array_equal(step(a, [1, 2, 3, 4]), step(b, [1, 2, 3, 4]))
