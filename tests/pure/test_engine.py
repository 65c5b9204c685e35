"""The engine on a tiny random model: company changes nothing, nothing is lost, memory is left as found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from polyseq.batch import Batch
from polyseq.context import Context
from polyseq.engine import Done, Engine, Event, Token, common_prefix, generate, start
from polyseq.errors import BadColumn, SamplingError, SequenceError
from polyseq.model import Model
from polyseq.sampling import Sampler, SamplingParams
from tiny_gguf import N_VOCAB, write_tiny_gguf

Tokens = NDArray[np.int32]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model.load(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The same without an EOS."""
    return Model.load(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "endless.gguf", with_eos=False))


def text(n: int, seed: int) -> Tokens:
    return np.random.default_rng(seed).integers(0, 256, n).astype(np.int32)


def alone(model: Model, prompt: Tokens, params: SamplingParams, max_tokens: int) -> list[int]:
    """What the prompt says by itself: one sequence, one token per call, no engine."""
    ctx = Context(model, n_ctx=256, n_batch=256, n_ubatch=256)
    sampler = Sampler(params)
    sampler.accept_prompt(prompt)
    batch, fed, said = ctx.batch(), prompt, []
    for _ in range(max_tokens):
        batch.clear()
        batch.extend(fed, output=np.arange(len(fed)) == len(fed) - 1)
        token = sampler.sample(ctx.decode(batch).logits(-1))
        if token in model.tokenizer.stop_ids:
            break
        sampler.accept(token)
        said.append(token)
        fed = np.array([token], np.int32)
    return said


def sorted_out(events: Sequence[Event]) -> tuple[dict[int, list[int]], dict[int, Done]]:
    """Tokens and ending of every prompt; an ending comes once and last."""
    said: dict[int, list[int]] = defaultdict(list)
    ended: dict[int, Done] = {}
    for event in events:
        assert event.i_prompt not in ended
        if isinstance(event, Token):
            said[event.i_prompt].append(event.token)
        else:
            ended[event.i_prompt] = event
            assert event.n_gen == len(said[event.i_prompt])
    return said, ended


def assert_empty(ctx: Context) -> None:
    assert [ctx.memory.pos_max(seq) for seq in range(ctx.n_seq_max)] == [-1] * ctx.n_seq_max


# ---- company -------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_an_answer_does_not_depend_on_its_company(model: Model, data: st.DataObject) -> None:
    """Any sizes, any cuts, sharing or not: the same tokens as alone."""
    shared = text(data.draw(st.sampled_from([0, 9, 30]), "shared"), 99)
    lengths = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=6), "lengths")
    prompts = [np.concatenate((shared, text(n, i))) for i, n in enumerate(lengths)]
    params = [
        SamplingParams(seed=i, temperature=data.draw(st.sampled_from([0.0, 0.7, 1.5]), "temperature"))
        for i in range(len(prompts))
    ]
    unified = data.draw(st.booleans(), "unified")
    n_seq_max = data.draw(st.integers(1, 4), "n_seq_max")
    n_batch = data.draw(st.integers(1, 64), "n_batch")
    ctx = Context(
        model,
        n_ctx=64 * n_seq_max,
        n_seq_max=n_seq_max,
        n_batch=n_batch,
        n_ubatch=data.draw(st.integers(1, n_batch), "n_ubatch"),
        unified=unified,
    )
    max_tokens = data.draw(st.integers(1, 12), "max_tokens")
    share = data.draw(st.sampled_from([True, True, False]), "share_prefix")
    events = list(generate(ctx, model, prompts, params=params, max_tokens=max_tokens, share_prefix=share))
    said, ended = sorted_out(events)
    for i, prompt in enumerate(prompts):
        assert said[i] == alone(model, prompt, params[i], max_tokens)
        assert ended[i].reason == ("length" if len(said[i]) == max_tokens else "stop")
        assert ended[i].n_prompt == len(prompt)
    assert_empty(ctx)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_crowded_cache_loses_nobody(endless: Model, data: st.DataObject) -> None:
    """Too few cells for all: every prompt still ends, with what it would have said alone, perhaps less of it."""
    shared = text(data.draw(st.sampled_from([0, 10]), "shared"), 99)
    lengths = data.draw(st.lists(st.integers(1, 30), min_size=2, max_size=6), "lengths")
    prompts = [np.concatenate((shared, text(n, i))) for i, n in enumerate(lengths)]
    n_ctx = data.draw(st.integers(1, 60), "n_ctx")
    n_batch = data.draw(st.integers(1, n_ctx), "n_batch")
    ctx = Context(endless, n_ctx=n_ctx, n_seq_max=4, n_batch=n_batch, n_ubatch=n_batch, unified=True)
    params = SamplingParams(seed=1)
    said, ended = sorted_out(list(generate(ctx, endless, prompts, params=params, max_tokens=8)))
    assert sorted(ended) == list(range(len(prompts)))
    for i, prompt in enumerate(prompts):
        if len(prompt) > n_ctx:
            assert ended[i].reason == "error" and not said[i]
            continue
        full = alone(endless, prompt, params, 8)
        assert said[i] == full[: len(said[i])] and said[i]
        assert ended[i].reason == ("length" if len(said[i]) == 8 else "context")
        assert ended[i].reason == "length" or ended[i].message
    assert_empty(ctx)


def test_a_prompt_that_needs_the_cells_of_others_waits_for_them(endless: Model) -> None:
    prompts = [text(20, 1), text(20, 2), text(20, 3)]
    ctx = Context(endless, n_ctx=30, n_seq_max=3, n_batch=30, n_ubatch=30, unified=True)
    engine = start(ctx, endless, prompts, params=SamplingParams(seed=1), max_tokens=5)
    said, ended = sorted_out(list(engine.run()))
    assert [ended[i].reason for i in range(3)] == ["length"] * 3
    assert [len(said[i]) for i in range(3)] == [5] * 3
    assert engine.stats.n_refused > 0


def test_a_half_read_prompt_keeps_its_cells_while_others_decode(endless: Model) -> None:
    prompts = [text(4, 1), text(20, 2)]
    ctx = Context(endless, n_ctx=25, n_seq_max=2, n_batch=8, n_ubatch=8, unified=True)
    params = SamplingParams(seed=1)
    engine = start(ctx, endless, prompts, params=params, max_tokens=4)
    said, _ = sorted_out(list(engine.run()))
    assert engine.stats.n_refused == 1  # with 18 of the 20 read, the last 2 do not fit beside the first prompt
    assert engine.stats.n_prompt_rows == 24  # nothing was computed twice
    assert [said[i] for i in range(2)] == [alone(endless, p, params, 4) for p in prompts]


# ---- endings -------------------------------------------------------------------------------------------


def test_prompts_that_cannot_run_end_alone(model: Model) -> None:
    bad = text(5, 1)
    bad[3] = N_VOCAB
    prompts = [text(41, 0), np.zeros(0, np.int32), bad, text(40, 7)]
    ctx = Context(model, n_ctx=80, n_seq_max=2, n_batch=64, n_ubatch=64)
    said, ended = sorted_out(list(generate(ctx, model, prompts, params=SamplingParams(seed=3), max_tokens=1)))
    assert [ended[i].reason for i in range(3)] == ["error"] * 3
    assert ended[3].reason in ("length", "stop")
    assert "41 tokens" in ended[0].message and "holds 40" in ended[0].message and "1 too many" in ended[0].message
    assert "empty" in ended[1].message
    assert f"token {N_VOCAB} at 3" in ended[2].message
    assert said[3] == alone(model, prompts[3], SamplingParams(seed=3), 1)


@pytest.mark.parametrize("unified", [False, True])
def test_a_sequence_ends_when_its_cells_are_full(endless: Model, unified: bool) -> None:
    ctx = Context(endless, n_ctx=20, n_batch=20, n_ubatch=20, unified=unified)
    said, ended = sorted_out(list(generate(ctx, endless, [text(12, 1)], params=SamplingParams(seed=1))))
    assert ended[0].reason == "context" and "20 cells" in ended[0].message
    assert len(said[0]) == 20 - 12 + 1  # the last token needs no cell: it is never fed
    assert said[0] == alone(endless, text(12, 1), SamplingParams(seed=1), 9)


def test_the_pieces_make_the_text(model: Model) -> None:
    ctx = Context(model, n_ctx=64, n_batch=64, n_ubatch=64)
    events = list(generate(ctx, model, [text(4, 1)], params=SamplingParams(seed=8), max_tokens=40))
    said, _ = sorted_out(events)
    assert "".join(event.text for event in events) == model.tokenizer.decode(said[0])


def test_what_is_asked_wrongly_is_refused(model: Model) -> None:
    ctx = Context(model, n_ctx=64, n_batch=64, n_ubatch=64)
    with pytest.raises(SamplingError, match="max_tokens 0"):
        start(ctx, model, [text(3, 0)], params=SamplingParams(), max_tokens=0)
    with pytest.raises(SamplingError, match="2 values for 1 prompts"):
        start(ctx, model, [text(3, 0)], params=[SamplingParams()] * 2)


def test_an_engine_uses_only_empty_sequences_and_leaves_the_others_alone(endless: Model) -> None:
    ctx = Context(endless, n_ctx=120, n_seq_max=3, n_batch=64, n_ubatch=64)
    batch = ctx.batch()
    batch.extend(text(7, 5), seq=1)
    ctx.decode(batch)
    list(generate(ctx, endless, [text(5, i) for i in range(4)], params=SamplingParams(), max_tokens=3))
    assert [ctx.memory.pos_max(seq) for seq in range(3)] == [-1, 6, -1]
    batch.clear()
    batch.extend([1, 2], seq=[0, 2])
    ctx.decode(batch)
    with pytest.raises(SequenceError, match="all 3 sequences"):
        Engine(ctx, endless)


def test_closing_early_frees_the_memory(endless: Model) -> None:
    ctx = Context(endless, n_ctx=120, n_seq_max=3, n_batch=64, n_ubatch=64, unified=True)
    events = generate(ctx, endless, [text(9, i) for i in range(5)], params=SamplingParams())
    for _ in range(10):
        next(events)
    assert ctx.memory.pos_max(0) >= 8
    events.close()  # type: ignore[attr-defined]
    assert_empty(ctx)


# ---- batches ---------------------------------------------------------------------------------------------


class Watch:
    """Keeps (token, number of sequences, first sequence, output) of every row of every batch."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[int, int, int, bool]]] = []

    def __call__(self, batch: Batch) -> None:
        first = np.cumsum(batch.seq_count) - batch.seq_count
        columns = (batch.token, batch.seq_count, batch.seq_ids[first], batch.output)
        self.batches.append(list(zip(*(c.tolist() for c in columns), strict=True)))


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("n_seq_max", [2, 4])
@pytest.mark.parametrize("n_batch", [7, 128])
def test_a_shared_prefix_is_computed_once(endless: Model, unified: bool, n_seq_max: int, n_batch: int) -> None:
    shared = text(20, 99)
    tails = [text(3 + i, i) for i in range(7)]
    prompts = [np.concatenate((shared, tail)) for tail in tails]
    ctx = Context(
        endless, n_ctx=60 * n_seq_max, n_seq_max=n_seq_max, n_batch=n_batch, n_ubatch=n_batch, unified=unified
    )
    engine = start(ctx, endless, prompts, params=SamplingParams(seed=1), max_tokens=4)
    said, _ = sorted_out(list(engine.run()))
    assert [said[i] for i in range(7)] == [alone(endless, p, SamplingParams(seed=1), 4) for p in prompts]
    assert engine.stats.n_prompt_rows == 20 + sum(map(len, tails))
    assert engine.stats.n_prompt_tokens == sum(map(len, prompts))
    assert engine.stats.n_gen_rows == 7 * 3  # the last of 4 tokens is never fed
    assert engine.stats.n_sampled == 7 * 4


def test_on_a_unified_cache_the_prefix_rows_carry_all_sequences(endless: Model) -> None:
    prompts = [np.concatenate((text(10, 99), text(2, i))) for i in range(3)]
    ctx = Context(endless, n_ctx=100, n_seq_max=3, n_batch=64, n_ubatch=64, unified=True)
    watch = Watch()
    list(start(ctx, endless, prompts, params=SamplingParams(seed=1), max_tokens=2, watch=watch).run())
    first = watch.batches[0]
    assert [n for _, n, _, _ in first] == [3] * 10 + [1] * 6
    assert [token for token, _, _, _ in first[:10]] == text(10, 99).tolist()
    assert [seq for _, _, seq, _ in first[10:]] == [0, 0, 1, 1, 2, 2]
    assert [output for *_, output in first] == [False] * 10 + [False, True] * 3


def test_decoding_rows_come_first_and_prompts_fill_the_rest(endless: Model) -> None:
    prompts = [text(2, 1), text(30, 2), text(3, 3)]
    ctx = Context(endless, n_ctx=150, n_seq_max=3, n_batch=10, n_ubatch=10, unified=True)
    watch = Watch()
    list(start(ctx, endless, prompts, params=SamplingParams(seed=1), max_tokens=6, watch=watch).run())
    assert [len(batch) for batch in watch.batches[:3]] == [10, 10, 10]
    assert [seq for _, _, seq, _ in watch.batches[0]] == [0, 0] + [1] * 8
    assert [seq for _, _, seq, _ in watch.batches[1]] == [0] + [1] * 9
    assert [output for *_, output in watch.batches[1]] == [True] + [False] * 9
    # 30 = 8 + 9 + 9 + 4: only the last token of the long prompt has an output
    assert [(seq, output) for _, _, seq, output in watch.batches[3]] == [
        (0, True), (1, False), (1, False), (1, False), (1, True), (2, False), (2, False), (2, True),
    ]  # fmt: skip


def test_more_decoding_sequences_than_n_batch_take_turns(endless: Model) -> None:
    prompts = [text(3, i) for i in range(5)]
    ctx = Context(endless, n_ctx=200, n_seq_max=5, n_batch=2, n_ubatch=2, unified=True)
    params = SamplingParams(seed=1)
    watch = Watch()
    said, _ = sorted_out(list(start(ctx, endless, prompts, params=params, max_tokens=6, watch=watch).run()))
    assert [said[i] for i in range(5)] == [alone(endless, p, params, 6) for p in prompts]
    assert max(map(len, watch.batches)) == 2


# ---- prefixes --------------------------------------------------------------------------------------------


def test_common_prefix() -> None:
    a, b = text(30, 1), text(30, 2)
    b[:12] = a[:12]
    b[12] = a[12] + 1
    assert common_prefix([a, b]).tolist() == a[:12].tolist()
    assert common_prefix([a, a]).tolist() == a[:29].tolist()  # a token of its own stays for each
    assert common_prefix([a, a[:9]]).tolist() == a[:8].tolist()
    assert common_prefix([a, a[:8]]).tolist() == []  # 7 do not pay
    assert common_prefix([a]).tolist() == []
    assert common_prefix([]).tolist() == []
    assert common_prefix([a, a[1:]]).tolist() == []


def test_prompts_outside_the_prefix_run_beside_it(endless: Model) -> None:
    """Refused prompts do not spoil the prefix; sampled alone and beside it, answers agree."""
    shared = text(12, 99)
    prompts = [np.concatenate((shared, text(4, i))) for i in range(3)]
    ctx = Context(endless, n_ctx=120, n_seq_max=2, n_batch=64, n_ubatch=64)
    engine = Engine(ctx, endless, prefix=shared)
    params = SamplingParams(seed=4)
    mixed = [prompts[0], text(9, 50), prompts[1], shared, text(2, 51), prompts[2]]
    for prompt in mixed:
        engine.submit(prompt, params=params, max_tokens=5)
    said, _ = sorted_out(list(engine.run()))
    assert [said[i] for i in range(6)] == [alone(endless, p, params, 5) for p in mixed]
    assert_empty(ctx)


@pytest.mark.parametrize("prompt", ["hello", [[1, 2]], [1.5], 7])
def test_a_prompt_is_a_column_of_ids(model: Model, prompt: Any) -> None:
    ctx = Context(model, n_ctx=64)
    with pytest.raises(BadColumn, match="a prompt is a column of token ids"):
        start(ctx, model, [prompt], params=SamplingParams())


def test_lists_will_do(model: Model) -> None:
    ctx = Context(model, n_ctx=64, n_seq_max=2)
    events = list(generate(ctx, model, [[1, 2, 3], range(4)], params=SamplingParams(), max_tokens=2))
    assert [event.reason for event in events if isinstance(event, Done)].count("error") == 0
