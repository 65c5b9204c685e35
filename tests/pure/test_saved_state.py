"""Saved and restored: as if never saved, whatever the cells, streams and sizes; a blob that is not sound is refused."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from on_backend import backend_under_test, exact
from polyseq import Context, Model
from polyseq import errors as e
from polyseq.memory import window_pair
from polyseq.saved_state import _digest
from test_atomic import AFTER, CALL, KINDS, PAST, context, logits
from tiny import tiny_llama
from tiny_kinds import tiny_gemma3, tiny_mamba


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch, on_each_backend: None) -> None:
    monkeypatch.setattr(window_pair, "WINDOW_PAD", 1)


def holding(kind: str, **sizes: Any) -> Context:
    ctx = context(kind, **sizes)
    logits(ctx, *PAST)
    logits(ctx, *CALL)
    return ctx


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_context_goes_on_as_if_never_saved(kind: str, tmp_path: Path) -> None:
    ctx, other = holding(kind), context(kind)
    ctx.save_file(tmp_path / "all")
    other.restore_file(tmp_path / "all")
    if "recurrent" not in kind and "hybrid" not in kind:
        assert other.memory.columns() == ctx.memory.columns(), "the same layout: the same cells"
    other.memory.check()
    for tokens in (AFTER, ([7] * 5, []), ([1], [2])):
        np.testing.assert_array_equal(logits(other, *tokens), logits(ctx, *tokens))
    assert [p.name for p in tmp_path.iterdir()] == ["all"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_sequence_goes_into_a_fragmented_memory_under_another_id(kind: str) -> None:
    ctx, other = holding(kind), context(kind, n_seq_max=3, n_ctx=144)
    blob = ctx.save(1)
    logits(other, [9, 9, 9], [8], [5] * 6)
    if "recurrent" not in kind and "hybrid" not in kind:
        other.memory.rm(2, 2, 4)  # a hole
    other.memory.rm(0)
    for s in (2, 0):
        if other.memory.pos_max(s) < 0:
            other.restore(blob, s)
    other.memory.check()
    assert (other.memory.pos_max(0), other.memory.pos_max(1)) == (ctx.memory.pos_max(1), 0)
    neighbour = context(kind)
    logits(neighbour, [], [8])
    wanted = logits(ctx, [], AFTER[1]), logits(neighbour, [], [3, 3])
    found = logits(other, AFTER[1], [3, 3])
    np.testing.assert_allclose(found[:2], wanted[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found[2:], wanted[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("model", ["llama", "window"])
@pytest.mark.parametrize("unified", [False, True])
def test_streams_and_one_stream_take_each_others(model: str, unified: bool) -> None:
    one, streams = ("unified", "streams") if model == "llama" else ("window, unified", "window, streams")
    source, target = (one, streams) if unified else (streams, one)
    ctx = context(source)
    if unified:
        batch = ctx.batch()
        batch.extend([1, 2, 3, 4, 5, 6], seq=[{0, 1}] * 6)  # stored once
        ctx.decode(batch)
    else:
        logits(ctx, [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])
    logits(ctx, *CALL)
    other = context(target, n_ctx=128)
    other.restore(ctx.save())
    other.memory.check()
    np.testing.assert_allclose(logits(other, *AFTER), logits(ctx, *AFTER), rtol=0, atol=1e-5)


def test_pending_shifts_and_copies_are_paid_first() -> None:
    ctx = context("streams")
    logits(ctx, *PAST)
    ctx.memory.rm(0, 1, 3)
    ctx.memory.add(0, 3, -1, -2)
    ctx.memory.rm(1)
    ctx.memory.cp(0, 1)
    other = context("streams")
    other.restore(ctx.save(1), 0)
    np.testing.assert_allclose(logits(other, [7, 7]), logits(ctx, [7, 7]), rtol=0, atol=1e-5)


def test_snapshots_are_saved_too() -> None:
    model = tiny_mamba().model
    ctx, other, fewer = (exact(model, n_ctx=64, n_ubatch=8, n_rs_seq=k) for k in (3, 3, 1))
    logits(ctx, [1, 2, 3, 4, 5, 6])
    blob = ctx.save(0)
    for c in (other, fewer):
        c.restore(blob)
        c.memory.check()
    ctx.memory.rm(0, 4, -1)
    other.memory.rm(0, 4, -1)
    np.testing.assert_array_equal(logits(other, [9]), logits(ctx, [9]))
    with pytest.raises(e.SequenceError):
        fewer.memory.rm(0, 4, -1)
    assert fewer.memory.rm(0, 5, -1)


# ---- what is refused -------------------------------------------------------------------------------------


def refused(
    ctx: Context, blob: bytes, seq_id: int | None = None, *, match: str | None = None, error: Any = e.SavedStateError
) -> None:
    before = ctx.memory.columns()
    tensors = [ctx._cache.read(p.name, s, np.arange(p.n_cells)) for p in ctx.memory.parts for s in range(p.n_stream)]
    with pytest.raises(error, match=match):
        ctx.restore(blob, seq_id)
    assert ctx.memory.columns() == before
    again = [ctx._cache.read(p.name, s, np.arange(p.n_cells)) for p in ctx.memory.parts for s in range(p.n_stream)]
    for a, b in zip(tensors, again, strict=True):
        assert all(np.array_equal(a[key], b[key], equal_nan=True) for key in a)


@cache
def _blob(kind: str, backend: str) -> bytes:
    return holding(kind, backend=backend).save(0)


def saved(kind: str = "streams") -> bytes:
    """Sequence 0 of a context that is always the same."""
    return _blob(kind, backend_under_test())


@pytest.mark.parametrize("kind", ["streams", "window, unified", "recurrent"])
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_damaged_blob_is_refused(kind: str, data: st.DataObject) -> None:
    blob, ctx = bytearray(saved(kind)), context(kind)
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(blob) - 1))
        blob[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        blob = blob[: data.draw(st.integers(0, len(blob) - 1))]
    refused(ctx, bytes(blob))


def test_a_foreign_blob_is_refused() -> None:
    blob = saved()
    other: list[Model] = [tiny_llama(seed=1).model, tiny_gemma3().model, tiny_llama(n_layer=3).model]
    for model in other:
        refused(exact(model, n_ctx=64), blob, match="another model")
    refused(context("streams"), b"", match="no saved state")
    refused(context("streams"), save({"a": np.zeros(3, np.float32)}), match="no saved state")


def forged(blob: bytes, **columns: Any) -> bytes:
    """A blob with other columns and a checksum that is right."""
    tensors = {**load(blob), **{name.replace("__", "/"): a for name, a in columns.items()}}
    n = int.from_bytes(blob[:8], "little")
    text = json.loads(blob[8 : 8 + n])["__metadata__"]["polyseq"]
    return save(tensors, {"polyseq": text, "sha256": _digest(text, tensors)})


@pytest.mark.parametrize(
    "columns",
    [
        {"kv__pos": np.full(16, -1, np.int32)},
        {"kv__entry": np.full(16, 99, np.int32)},
        {"kv__entry": np.zeros(16, np.int32)},
        {"kv__seq": np.full(16, 7, np.int32)},
        {"kv__seq": np.full(16, -3, np.int32)},
        {"kv__cells": np.zeros(3, np.int32)},
        {"kv__pos": np.zeros(16, np.float32)},
    ],
)
def test_a_forged_blob_is_refused(columns: dict[str, Any]) -> None:
    refused(context("streams"), forged(saved(), **columns))


@pytest.mark.parametrize("kind", ["streams", "window, unified", "recurrent"])
def test_rows_of_another_backend_are_refused_with_what_would_do(kind: str) -> None:
    there = "cpu" if backend_under_test() == "reference" else "reference"
    kv_type = "bf16" if there == "cpu" else None
    other = context(kind, backend=there, kv_type=kv_type)
    if kind == "recurrent":  # states are f32 on both
        other.restore(saved(kind))
        np.testing.assert_allclose(logits(other, AFTER[0]), logits(holding(kind), AFTER[0]), rtol=0, atol=1e-4)
        return
    told = r"part kv, rows \S+: saved .*, this backend has .* with 16 cells; restore it with the backend and kv_type it"
    refused(other, saved(kind), match=told)


def rewritten(blob: bytes, **header: Any) -> bytes:
    """The same blob with another header and a checksum that is right."""
    n = int.from_bytes(blob[:8], "little")
    text = json.dumps(json.loads(json.loads(blob[8 : 8 + n])["__metadata__"]["polyseq"]) | header)
    return save(load(blob), {"polyseq": text, "sha256": _digest(text, load(blob))})


def test_other_formats_and_parts_are_refused() -> None:
    refused(context("streams"), rewritten(saved(), format="polyseq sequences, 9"), match="no header of format 'polyseq")
    for parts in (["kv", "rs"], [], 7, None):
        refused(
            context("streams"), rewritten(saved(), parts=parts), match=r"the state has parts .*, this memory \['kv'\]"
        )
    refused(context("streams"), rewritten(saved(), n_pos=4), match="the state has parts")
    apart = forged(saved("hybrid, streams"), rs__pos=load(saved("hybrid, streams"))["rs/pos"] - 1)
    refused(context("hybrid, streams"), apart, match="sequence 0 was saved with cells to p15 and a state at p14")
    states = forged(saved("recurrent"), rs__starts=np.array([40, -1], np.int32))
    refused(context("recurrent"), states, match="states and first tokens of sequences do not go together")


def test_what_its_header_says_of_sequences_is_not_relied_on() -> None:
    """Two sequences never become one, nor a header that is no list of them an error of another kind."""
    both = holding("streams").save()
    for said in ({"0": [0, 15]}, 5, None):
        blob = rewritten(both, sequences=said)
        refused(context("streams"), blob, 1, match="2 sequences were saved")
        context("streams").restore(blob)


@pytest.mark.parametrize("kind", ["unified", "window, unified", "hybrid, unified"])
def test_a_smaller_memory_does_not_search_from_beyond_its_end(kind: str) -> None:
    """The cells that are saved fit where they were; the head, behind those of a sequence that is not, does not."""
    ctx, other = context(kind), context(kind, n_ctx=16, n_batch=16)
    logits(ctx, PAST[0])
    logits(ctx, [], [1] * 30)
    other.restore(ctx.save(0))
    other.memory.check()
    np.testing.assert_allclose(logits(other, AFTER[0]), logits(ctx, AFTER[0]), rtol=0, atol=1e-5)


def test_where_it_does_not_go_is_said() -> None:
    blob = saved()
    ctx = context("streams")
    logits(ctx, [1, 2])
    refused(ctx, blob, match=r"sequence 0 holds p0\.\.1; remove it first")
    refused(ctx, blob, 5, match="outside", error=e.SequenceError)
    refused(context("streams", n_ctx=20, n_batch=20), blob, match="no slot", error=e.NoSlot)
    everything = holding("streams").save()
    refused(ctx, everything, 1, match="2 sequences were saved")
    refused(context("streams", n_seq_max=1), everything, match="sequence 1 was saved, but here ids are below 1")
    refused(context("window, streams"), blob, match="another model")
