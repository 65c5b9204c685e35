"""decode() end to end on tiny random llamas: any cut equals any other, a failed call never happened."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from polyseq import Batch, Context, FlatBatch, Model, NoSlot
from polyseq import errors as e
from polyseq.backends import Plan
from polyseq.collector import OutputCollector
from polyseq.memory.cells import Cells
from tiny import tiny_llama

TINY = tiny_llama(rope_freqs=True)
MODEL = Model(TINY.architecture, TINY.weights, TINY.metadata)
ONE_LAYER = tiny_llama(n_layer=1)
N_VOCAB = MODEL.architecture.hparams.n_vocab

# BLAS adds in another order for other shapes: float32 noise on logits of a few units.
TOLERANCE = 1e-4


def context(model: Model = MODEL, **sizes: Any) -> Context:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", e.PolyseqWarning)
        return Context(model, **{"n_ctx": 64, "n_seq_max": 4, **sizes})


def solo(tokens: Sequence[int], model: Model = MODEL) -> NDArray[np.float32]:
    """[n, n_vocab] logits of every row of one sequence, alone, in one call and one ubatch."""
    ctx = context(model, n_seq_max=1)
    return decode(ctx, tokens).all_logits()


def decode(ctx: Context, tokens: Sequence[int], *, seq: object = 0, pos: object = None) -> Any:
    batch = ctx.batch()
    batch.extend(tokens, seq=seq, pos=pos, output=True)  # type: ignore[arg-type]
    return ctx.decode(batch)


def close(ours: NDArray[np.float32], theirs: NDArray[np.float32], tolerance: float = TOLERANCE) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


# ---- the central property ------------------------------------------------------------------------------

token_lists = st.lists(st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=9), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(token_lists, st.data(), st.booleans(), st.integers(1, 12), st.integers(4, 12))
def test_any_grouping_gives_the_same_logits(
    sequences: list[list[int]], data: st.DataObject, unified: bool, n_ubatch: int, n_batch: int
) -> None:
    order = np.repeat(np.arange(len(sequences)), [len(s) for s in sequences])
    if data.draw(st.booleans(), label="interleaved"):
        order = np.array(data.draw(st.permutations(order.tolist()), label="order"))
    ctx = context(unified=unified, n_ubatch=n_ubatch, n_batch=n_batch)
    done = [0] * len(sequences)
    got: list[list[NDArray[np.float32]]] = [[] for _ in sequences]
    at = 0
    while at < len(order):
        n = data.draw(st.integers(1, n_batch), label="rows in this call")
        seqs = order[at : at + n]
        batch = ctx.batch()
        for s in seqs:
            batch.add(sequences[s][done[s]], seq=int(s), output=True)
            done[s] += 1
        outputs = ctx.decode(batch)
        for i, s in enumerate(seqs):
            got[s].append(outputs.logits(i))
        at += n
    for s, tokens in enumerate(sequences):
        close(np.array(got[s]), solo(tokens))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=8), token_lists, st.integers(1, 9))
def test_a_shared_prefix_equals_solo_runs(prefix: list[int], tails: list[list[int]], n_ubatch: int) -> None:
    ctx = context(unified=True, n_ubatch=n_ubatch)
    batch = ctx.batch()
    batch.extend(prefix, seq=set(range(len(tails))))
    for s, tail in enumerate(tails):
        batch.extend(tail, seq=s, output=True)
    outputs = ctx.decode(batch)
    assert ctx.memory.n_used == len(prefix) + sum(map(len, tails)), "the prefix is stored once"
    at = 0
    logits = outputs.all_logits()
    for tail in tails:
        close(logits[at : at + len(tail)], solo([*prefix, *tail])[len(prefix) :])
        at += len(tail)


# F37: identical rows of one batch are identical to each other.
@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("n_seqs", [1, 2, 4, 8])
def test_identical_sequences_agree(unified: bool, n_seqs: int) -> None:
    ctx = context(unified=unified, n_seq_max=8, n_ctx=256, n_ubatch=16)
    tokens = list(range(20))
    batch = ctx.batch()
    batch.extend(tokens * n_seqs, seq=np.repeat(np.arange(n_seqs), 20), output=True)
    logits = ctx.decode(batch).all_logits().reshape(n_seqs, 20, -1)
    close(logits, np.repeat(logits[:1], n_seqs, axis=0), 1e-5)
    close(logits[0], solo(tokens))


# F41: a row never depends on its neighbour's length.
@pytest.mark.parametrize("unified", [True, False])
def test_a_long_neighbour_changes_nothing(unified: bool) -> None:
    ctx = context(unified=unified)
    batch = ctx.batch()
    batch.extend(range(12), seq=0)
    batch.extend([5, 6, 7], seq=1, output=True)
    close(ctx.decode(batch).all_logits(), solo([5, 6, 7]))


# F07, F18: n_batch bounds a call, n_ubatch a block.
def test_a_prompt_longer_than_n_batch_comes_in_calls() -> None:
    ctx = context(n_seq_max=1, n_batch=8)
    with pytest.raises(e.BatchTooLarge, match="9 rows after 0 make 9, the batch holds 8"):
        decode(ctx, range(9))
    free = Batch()
    free.extend(range(9))
    with pytest.raises(e.BatchTooLarge, match="9 rows, n_batch is 8"):
        ctx.decode(free)
    decode(ctx, range(8))
    close(decode(ctx, [8]).logits(-1), solo(range(9))[-1])
    ctx = context(n_seq_max=1, n_batch=16, n_ubatch=4)
    batch = ctx.batch()
    batch.extend(range(10))
    assert [u.n_tokens for u in ctx.plan(batch).ubatches] == [4, 4, 2]


# ---- sequence operations, by value ----------------------------------------------------------------------


# F51: a second probe at one position needs the first one removed.
@pytest.mark.parametrize("unified", [True, False])
def test_going_back_equals_a_fresh_run(unified: bool) -> None:
    ctx = context(unified=unified)
    decode(ctx, [1, 2, 3, 4, 5])
    decode(ctx, [6])
    with pytest.raises(e.MemoryPosition, match="starts at position 5, but memory holds it up to 5"):
        decode(ctx, [7], pos=[5])
    ctx.memory.rm(0, 5, -1)
    close(decode(ctx, [7]).logits(0), solo([1, 2, 3, 4, 5, 7])[-1])


@pytest.mark.parametrize("unified", [True, False])
def test_a_copy_goes_its_own_way(unified: bool) -> None:
    ctx = context(unified=unified)
    decode(ctx, [1, 2, 3])
    ctx.memory.cp(0, 2)
    ctx.memory.rm(0)
    decode(ctx, [9], seq=0)
    close(decode(ctx, [4], seq=2).logits(0), solo([1, 2, 3, 4])[-1])
    close(decode(ctx, [8], seq=0).logits(0), solo([9, 8])[-1])


@pytest.mark.parametrize("unified", [True, False])
def test_keep_and_clear(unified: bool) -> None:
    ctx = context(unified=unified)
    decode(ctx, [1, 2], seq=0)
    decode(ctx, [3, 4], seq=1)
    ctx.memory.keep(1)
    close(decode(ctx, [5], seq=1).logits(0), solo([3, 4, 5])[-1])
    ctx.memory.clear()
    close(decode(ctx, [6], seq=1).logits(0), solo([6])[-1])


# In a model of one layer K and V hold nothing but token and position, so a shift can be compared with a fresh run.
@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("copied", [True, False])
def test_shifted_keys_are_where_they_say(unified: bool, copied: bool) -> None:
    model = Model(ONE_LAYER.architecture, ONE_LAYER.weights, ONE_LAYER.metadata)
    ctx = context(model, unified=unified)
    decode(ctx, [10, 11, 12, 13, 14, 15])
    ctx.memory.rm(0, 2, 4)
    ctx.memory.add(0, 4, -1, -2)
    seq = 0
    if copied:
        ctx.memory.cp(0, 1)
        seq = 1
    close(decode(ctx, [16], seq=seq).logits(0), solo([10, 11, 14, 15, 16], model)[-1])
    assert not ctx.memory.pending()


def test_divided_keys_are_where_they_say() -> None:
    model = Model(ONE_LAYER.architecture, ONE_LAYER.weights, ONE_LAYER.metadata)
    ctx = context(model)
    decode(ctx, [10, 11, 12, 13])
    ctx.memory.div(0, -1, -1, 2)
    fresh = context(model, unified=True)
    decode(fresh, [10, 11, 12, 13], pos=[0, 0, 1, 1])
    # Equal positions see each other in the fresh run; what comes after sees the same keys in both.
    close(decode(ctx, [14]).logits(0), decode(fresh, [14]).logits(0))


# ---- a failed call never happened ----------------------------------------------------------------------


class FailingPlan:
    """The real plan, which does something of the test's in its n-th run."""

    def __init__(self, plan: Plan, at: int, act: Callable[[], None]) -> None:
        self.plan, self.at, self.act = plan, at, act

    def run(self, inputs: Any) -> Any:
        results = self.plan.run(inputs)
        self.at -= 1
        if self.at == 0:
            self.act()
        return results


def fail_in(ctx: Context, monkeypatch: pytest.MonkeyPatch, at: int, act: Callable[[], None]) -> None:
    get = ctx._plans.get
    failing: list[FailingPlan] = []

    def get_failing(key: Any) -> Any:
        if not failing:
            failing.append(FailingPlan(get(key), at, act))
        return failing[0]

    monkeypatch.setattr(ctx._plans, "get", get_failing)


def raise_(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize(
    "error", [RuntimeError("no"), MemoryError(), KeyboardInterrupt()], ids=lambda x: type(x).__name__
)
def test_an_error_in_any_ubatch_undoes_the_call(
    unified: bool, at: int, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context(unified=unified, n_ubatch=4)
    decode(ctx, [1, 2, 3], seq=0)
    before = ctx.memory.cells.columns()
    with monkeypatch.context() as patch:
        fail_in(ctx, patch, at, lambda: raise_(error))
        with pytest.raises(type(error)):
            decode(ctx, range(10), seq=1)
    assert ctx.memory.cells.columns() == before
    close(decode(ctx, range(10), seq=1).all_logits(), solo(range(10)))
    close(decode(ctx, [4], seq=0).logits(0), solo([1, 2, 3, 4])[-1])


def test_abort_ends_the_running_call_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context(n_ubatch=4)
    ctx.abort()  # nobody runs: nothing happens
    decode(ctx, [1, 2, 3])
    before = ctx.memory.cells.columns()

    def from_another_thread() -> None:
        thread = threading.Thread(target=ctx.abort)
        thread.start()
        thread.join()

    with monkeypatch.context() as patch:
        fail_in(ctx, patch, 2, from_another_thread)
        with pytest.raises(e.Aborted, match="before ubatch 2 of 3"):
            decode(ctx, range(10))
    assert ctx.memory.cells.columns() == before
    close(decode(ctx, [4]).logits(0), solo([1, 2, 3, 4])[-1])


def test_an_error_while_results_are_gathered_undoes_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context(n_ubatch=4)
    before = ctx.memory.cells.columns()
    with monkeypatch.context() as patch:
        patch.setattr(OutputCollector, "finish", lambda self: raise_(MemoryError()))
        with pytest.raises(MemoryError):
            decode(ctx, range(10))
    assert ctx.memory.cells.columns() == before and ctx.stats.n_decode == 0


def test_an_interrupt_while_placing_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context(n_ubatch=4)
    before = ctx.memory.cells.columns()
    put, calls = Cells.put, []

    def put_once(self: Cells, *columns: Any) -> None:
        put(self, *columns)
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Cells, "put", put_once)
        with pytest.raises(KeyboardInterrupt):
            decode(ctx, range(16))
    assert ctx.memory.cells.columns() == before


@pytest.mark.parametrize("at", [1, 2])
def test_a_shift_that_was_interrupted_is_finished_later(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sound, ctx = context(), context()
    for c in (sound, ctx):
        decode(c, range(10))
        c.memory.rm(0, 0, 2)
        c.memory.add(0, 2, -1, -2)
    plans, runs = ctx._dues.shift_plans, []

    class Interrupted:
        def __init__(self, plan: Plan) -> None:
            self.plan = plan

        def run(self, inputs: Any) -> Any:
            runs.append(1)
            if len(runs) == at:
                raise KeyboardInterrupt
            return self.plan.run(inputs)

    monkeypatch.setattr(ctx._dues, "shift_plans", tuple(map(Interrupted, plans)))
    with pytest.raises(KeyboardInterrupt):
        decode(ctx, [20])
    ctx.memory.add(0, 4, -1, 1)
    sound_logits = []
    for c in (sound, ctx):
        if c is sound:
            decode(c, [20])
            c.memory.rm(0, 8, -1)
            c.memory.add(0, 4, -1, 1)
        sound_logits.append(decode(c, [21]).logits(0))
    close(sound_logits[1], sound_logits[0])


def test_copies_that_were_interrupted_are_not_done_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context()
    decode(ctx, [1, 2, 3], seq=0)
    decode(ctx, [7, 8, 9], seq=2)
    ctx.memory.cp(0, 1)
    ctx.memory.cp(2, 0)
    copy, calls = ctx._cache.copy_stream, []

    def second_fails(part: str, src: int, dst: int) -> None:
        calls.append((src, dst))
        if len(calls) == 2:
            raise KeyboardInterrupt
        copy(part, src, dst)

    monkeypatch.setattr(ctx._cache, "copy_stream", second_fails)
    with pytest.raises(KeyboardInterrupt):
        decode(ctx, [4], seq=1)
    assert ctx.memory.pending().copies == (("kv", 2, 0),)
    close(decode(ctx, [4], seq=1).logits(0), solo([1, 2, 3, 4])[-1])
    close(decode(ctx, [4], seq=0).logits(0), solo([7, 8, 9, 4])[-1])


def test_memory_operations_wait_for_a_running_call(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context(n_ubatch=4)
    decode(ctx, [1, 2, 3], seq=1)
    threads: list[threading.Thread] = []

    def remove_and_abort() -> None:
        threads.append(threading.Thread(target=lambda: ctx.memory.rm(1)))
        threads[0].start()
        ctx.abort()

    with monkeypatch.context() as patch:
        fail_in(ctx, patch, 1, remove_and_abort)
        with pytest.raises(e.Aborted):
            decode(ctx, range(8), seq=0)
    threads[0].join()
    ctx.memory.cells.check()
    assert ctx.memory.pos_max(1) == -1


def test_an_abort_in_the_last_ubatch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context()
    with monkeypatch.context() as patch:
        fail_in(ctx, patch, 1, ctx.abort)
        with pytest.raises(e.Aborted, match="after the last ubatch"):
            decode(ctx, [1, 2])
    assert ctx.memory.n_used == 0


def test_no_room_changes_nothing() -> None:
    ctx = context(n_ctx=8, n_seq_max=2, unified=True)
    decode(ctx, [1, 2, 3], seq=0)
    before = ctx.memory.cells.columns()
    with pytest.raises(NoSlot) as refusal:
        decode(ctx, range(6), seq=1)
    assert (refusal.value.needed, refusal.value.free) == (6, 5)
    assert ctx.memory.cells.columns() == before
    close(decode(ctx, range(5), seq=1).all_logits(), solo(range(5)))


REFUSED: list[tuple[str, Callable[[Context], object], type[Exception], str]] = [
    (
        "both",
        lambda c: c.decode(_rows(tokens=[1], embd=np.ones((1, 32)))),
        e.CapabilityError,
        "takes rows of .*not both",
    ),
    ("state", lambda c: c.decode(_rows(tokens=[1], state=np.ones((1, 4)))), e.CapabilityError, "no hidden-state rows"),
    ("shared", lambda c: decode(c, [1], seq={1, 2}), e.CoupledSequences, "unified"),
    ("mixed", lambda c: c.decode(_mixed(32)), e.ContentMix, "allow_mixed"),
    ("width", lambda c: c.decode(_rows(embd=np.ones((1, 31)))), e.BadEmbedding, "31 wide, the model takes 32"),
    ("token", lambda c: decode(c, [N_VOCAB]), e.BadToken, "row 0"),
    ("sequence", lambda c: decode(c, [1], seq=4), e.BadSeqId, "row 0: sequence 4"),
    ("empty", lambda c: c.decode(Batch()), e.EmptyBatch, "no rows"),
    ("no batch", lambda c: c.decode([1, 2]), e.BadColumn, "takes a Batch or a FlatBatch, not list"),  # type: ignore[arg-type]
]


def _rows(**columns: Any) -> Batch:
    batch = Batch()
    batch.extend(**columns)
    return batch


def _mixed(n_embd: int) -> Batch:
    batch = _rows(tokens=[1])
    batch.extend(embd=np.ones((1, n_embd)))
    return batch


@pytest.mark.parametrize(("name", "call", "error", "text"), REFUSED, ids=[r[0] for r in REFUSED])
def test_a_refused_call_changes_nothing(
    name: str, call: Callable[[Context], object], error: type[Exception], text: str
) -> None:
    ctx = context()
    decode(ctx, [1, 2], seq=0)
    ctx.memory.add(0, -1, -1, 1)
    before, stats = ctx.memory.cells.columns(), ctx.stats
    with pytest.raises(error, match=text):
        call(ctx)
    if error is not e.CoupledSequences:  # found after the pending shift was carried out
        assert ctx.memory.cells.columns() == before
    assert ctx.stats == stats


# ---- inputs and outputs --------------------------------------------------------------------------------


def test_embedding_rows_equal_their_tokens() -> None:
    table = TINY.arrays["token_embd.weight"]
    wanted = solo([7, 8, 9])
    ctx = context(allow_mixed=True)
    batch = ctx.batch()
    batch.extend(embd=table[[7, 8, 9]], output=True)
    close(ctx.decode(batch).all_logits(), wanted)
    batch.clear()
    batch.add(7, seq=1, output=True)
    batch.add(embd=table[8], seq=1, output=True)
    batch.add(9, seq=1, output=True)
    close(ctx.decode(batch).all_logits(), wanted)
    assert ctx.stats.plan_miss_reasons == {"first plan": 1, "content: embd -> mixed": 1}


def test_a_flat_batch_is_taken_as_it_is() -> None:
    ctx = context()
    close(ctx.decode(FlatBatch(token=[1, 2, 3])).all_logits(), solo([1, 2, 3])[-1:])
    close(ctx.decode(FlatBatch(token=[4])).logits(-1), solo([1, 2, 3, 4])[-1])


@settings(max_examples=40, deadline=None)
@given(token_lists, st.integers(1, 9), st.booleans())
def test_hidden_rows_follow_their_own_permutation(sequences: list[list[int]], n_ubatch: int, unified: bool) -> None:
    ctx = context(unified=unified, n_ubatch=n_ubatch, keep_hidden=True, keep_layers=(1, 0))
    batch = ctx.batch()
    seq = np.repeat(np.arange(len(sequences)), [len(s) for s in sequences])
    tokens = np.concatenate([np.array(s) for s in sequences])
    batch.extend(tokens, seq=seq, output=np.arange(len(seq)) % 2 == 0)
    outputs = ctx.decode(batch)
    alone = context(n_seq_max=1, keep_hidden=True, keep_layers=(0, 1))
    at = 0
    for s in sequences:
        alone.memory.clear()
        theirs = decode(alone, s)
        for i in range(len(s)):
            close(outputs.hidden(at + i), theirs.hidden(i))
            close(outputs.layer(1, at + i), theirs.layer(1, i))
            close(outputs.layer(0, at + i), TINY.arrays["token_embd.weight"][s[i]], 0)
        at += len(s)


# F34: a result never changes.
def test_results_own_their_data() -> None:
    ctx = context(keep_hidden=True, keep_layers=(1,))
    first = decode(ctx, [1, 2, 3])
    kept = [a.copy() for a in (first.all_logits(), first.all_hidden(), first.all_layer(1))]
    decode(ctx, [4, 5, 6])
    for ours, before in zip((first.all_logits(), first.all_hidden(), first.all_layer(1)), kept, strict=True):
        assert np.array_equal(ours, before)


def test_rows_that_were_not_kept_are_refused_with_what_to_ask_for() -> None:
    outputs = decode(context(), [1, 2])
    for ask in (lambda: outputs.hidden(0), outputs.all_hidden):
        with pytest.raises(e.CapabilityError, match="hidden rows were not kept; create the context with keep_hidden=T"):
            ask()


@pytest.mark.parametrize(("n_keep", "n_discard", "gone"), [(0, 0, 0), (4, 2, 2), (-1, 2, 2), (2, 9, 9), (5, None, 0)])
def test_a_shift_of_what_is_not_there_is_refused(n_keep: int, n_discard: int | None, gone: int) -> None:
    ctx = context()
    decode(ctx, range(5))
    before = ctx.memory.columns()
    with pytest.raises(e.CapabilityError, match=f"sequence 0 holds 5 positions: {gone} after {n_keep} cannot go"):
        ctx.shift_context(0, n_keep=n_keep, n_discard=n_discard)
    assert ctx.memory.columns() == before


def test_a_plan_computes_nothing() -> None:
    ctx = context()
    batch = ctx.batch()
    batch.extend([1, 2, 3])
    before = ctx.memory.cells.columns()
    assert len(ctx.plan(batch).ubatches) == 1
    assert ctx.memory.cells.columns() == before and ctx.stats.n_decode == 0


def test_threads_take_turns() -> None:
    ctx = context(n_ubatch=4)
    wanted = solo(range(12))
    got: dict[int, NDArray[np.float32]] = {}
    threads = [
        threading.Thread(target=lambda s=s: got.update({s: decode(ctx, range(12), seq=s).all_logits()}))
        for s in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for s in range(4):
        close(got[s], wanted)


# ---- sizes ---------------------------------------------------------------------------------------------


def test_effective_sizes_can_be_read_back() -> None:
    ctx = Context(MODEL, n_ctx=96, n_seq_max=3, n_batch=32, n_ubatch=8)
    assert (ctx.n_ctx, ctx.n_ctx_seq, ctx.n_batch, ctx.n_ubatch, ctx.n_seq_max) == (96, 32, 32, 8, 3)
    assert Context(MODEL, n_ctx=96, n_seq_max=3, unified=True).n_ctx_seq == 96
    assert ctx.notes == ()


@pytest.mark.parametrize(
    ("sizes", "text", "effective"),
    [
        ({"n_batch": 4, "n_ubatch": 16}, "n_ubatch 16 clamped to n_batch 4", {"n_ubatch": 4}),
        ({"n_batch": 500}, "n_batch 500 clamped to n_ctx 64", {"n_batch": 64}),
        ({"n_ctx": 50, "n_seq_max": 4}, "n_ctx 50 over 4 streams: 12 cells each, 2 unused", {"n_ctx_seq": 12}),
        ({"n_ctx": 1024, "n_seq_max": 1}, "1024 positions, but the model was trained for 512", {"n_ctx": 1024}),
    ],
)
def test_every_clamping_is_said_once(sizes: dict[str, int], text: str, effective: dict[str, int]) -> None:
    with pytest.warns(e.PolyseqWarning, match=text) as said:
        ctx = Context(MODEL, **{"n_ctx": 64, **sizes})  # type: ignore[arg-type]
    assert len(said) == 1 and len(ctx.notes) == 1
    for name, value in effective.items():
        assert getattr(ctx, name) == value


@pytest.mark.parametrize(
    ("sizes", "error", "text"),
    [
        ({"n_seq_max": 0}, e.BadSeqCount, "n_seq_max is 0, it must be 1 to 256"),
        ({"n_seq_max": 257}, e.BadSeqCount, "257"),
        ({"n_ctx": 3, "n_seq_max": 4}, e.ContextError, "n_ctx 3 over n_seq_max 4 streams leaves no cell"),
        ({"n_ctx": -1}, e.ContextError, "n_ctx is -1"),
        ({"n_ctx": 48.0}, e.ContextError, "n_ctx is 48.0, it must be a whole number"),
        ({"n_ctx": 1 << 50}, e.ContextError, "no memory for .* lower n_ctx"),
        ({"n_batch": 0}, e.ContextError, "n_batch is 0"),
        ({"n_seq_max": "2"}, e.ContextError, "n_seq_max is '2', it must be a whole number"),
        ({"on_error": "redo"}, e.ContextError, "on_error is 'redo', it must be one of undo, keep_finished"),
        ({"keep_layers": (2,)}, e.ContextError, r"layer 2 is outside \[0, 2\)"),
        ({"backend": "abacus"}, e.CapabilityError, "'abacus'"),
    ],
)
def test_sizes_that_cannot_work(sizes: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Context(MODEL, **{"n_ctx": 64, **sizes})


def test_zero_means_the_natural_value() -> None:
    ctx = Context(MODEL, n_ctx=0, n_batch=100, n_ubatch=0)
    assert (ctx.n_ctx, ctx.n_ubatch) == (512, 100)
    assert ctx.notes == ("n_ctx 0: the model's own 512 cells", "n_ubatch 0: as n_batch, 100")


@pytest.mark.parametrize("unified", [True, False])
def test_many_sequences(unified: bool) -> None:
    ctx = context(n_seq_max=256, n_ctx=256 * 4, unified=unified)
    batch = ctx.batch()
    batch.extend(np.arange(512) % N_VOCAB, seq=np.repeat(np.arange(256), 2), output=np.arange(512) % 2 == 1)
    outputs = ctx.decode(batch)
    for s in (0, 100, 255):
        close(outputs.logits(2 * s + 1), solo([2 * s % N_VOCAB, (2 * s + 1) % N_VOCAB])[-1])
