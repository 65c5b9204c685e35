"""Embedding contexts, `embed` and `rerank` on tiny random models: batched is single, order, refusals by index.

Names in brackets are kinds of complaints from the field.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from on_backend import exact
from polyseq import Context, Model, embed, rerank
from polyseq.embeddings import Embedder, TextsRefused
from polyseq.embeddings.packing import pack
from polyseq.engine import Engine
from polyseq.errors import (
    BadColumn,
    BadSeqCount,
    BadSeqId,
    BatchTooLarge,
    BeyondModel,
    CapabilityError,
    ContextError,
    OutputError,
    PolyseqWarning,
    SequenceTooLong,
    SharedRow,
    TokenizerError,
)
from polyseq.graph import Pooling
from polyseq.split import Seq, Whole
from tiny import Tiny, tiny_llama
from tiny_bert import N_CTX, N_EMBD, tiny_bert
from tiny_gguf import write_tiny_gguf
from tiny_kinds import tiny_gemma3, tiny_lfm2, tiny_mamba

RNG = np.random.default_rng(7)
TEXTS = ["the cat sat on the mat .", "a", "", "dog", "far far far far far far far far", "the cat", "a", "mats !"]
POOLINGS = ("mean", "cls", "last")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model.load(tiny_bert(tmp_path_factory.mktemp("bert"), pooling="mean_tokens"))


@pytest.fixture(scope="module")
def cross(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model.load(tiny_bert(tmp_path_factory.mktemp("cross"), n_labels=1))


@pytest.fixture(scope="module")
def llama() -> Model:
    tiny = tiny_llama()
    return Model(tiny.architecture, tiny.weights, tiny.metadata)


def rows_of(ctx: Context, columns: dict[int, list[int]]) -> dict[int, NDArray[np.float32]]:
    batch = ctx.batch()
    for seq_id, tokens in columns.items():
        batch.extend(tokens, seq=seq_id)
    outputs = ctx.decode(batch)
    ctx.memory.clear()
    return {seq_id: outputs.pooled(seq_id) for seq_id in columns}


# ---- contexts --------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    spare=st.integers(0, 20),
    pooling=st.sampled_from(["mean", "cls", "last", "rank"]),
)
def test_batched_is_single_whatever_the_cut(cross: Model, lengths: list[int], spare: int, pooling: Pooling) -> None:
    n_ubatch = max(lengths) + spare
    tokens = [RNG.integers(5, 60, n).tolist() for n in lengths]
    ctx = Context(cross, n_seq_max=6, n_batch=72, n_ubatch=n_ubatch, pooling=pooling)
    together = rows_of(ctx, dict(enumerate(tokens)))
    for seq_id, column in enumerate(tokens):
        alone = rows_of(Context(cross, pooling=pooling), {0: column})[0]
        np.testing.assert_allclose(together[seq_id], alone, atol=1e-5)


MAKERS: dict[str, Callable[[], Tiny]] = {
    "llama": tiny_llama,
    "gemma3": tiny_gemma3,
    "mamba": tiny_mamba,
    "lfm2": tiny_lfm2,
}
EACH_POOLING = [
    *(("bert", pooling) for pooling in ("none", "mean", "cls", "last", "rank")),
    *((name, pooling) for name in MAKERS for pooling in ("none", "mean", "last")),
]


@pytest.mark.parametrize(("name", "pooling"), EACH_POOLING)
@pytest.mark.usefixtures("on_each_backend")
def test_batched_is_single_for_every_n_ubatch_that_fits(cross: Model, name: str, pooling: Any) -> None:
    """From the longest sequence to all of them in one ubatch, in an order of rows that mixes them."""
    model = cross if name == "bert" else MAKERS[name]().model
    columns = [RNG.integers(5, 60, n).tolist() for n in (5, 2, 7, 1, 4)]
    turns = np.random.default_rng(3).permutation(np.repeat(np.arange(5), [len(c) for c in columns]))

    def rows(seqs: list[int], n_ubatch: int) -> dict[int, NDArray[np.float32]]:
        ctx = exact(
            model, n_ctx=40, n_seq_max=5, n_batch=40, n_ubatch=n_ubatch, pooling=pooling, unified=name != "bert"
        )
        order = [s for s in turns.tolist() if s in seqs]
        left = {s: iter(columns[s]) for s in seqs}
        batch = ctx.batch()
        batch.extend([next(left[s]) for s in order], seq=order)
        outputs = ctx.decode(batch)
        if pooling == "none":
            return {s: outputs.all_hidden()[np.equal(order, s)] for s in seqs}
        return {s: outputs.pooled(s) for s in seqs}

    alone = {s: rows([s], 7)[s] for s in range(5)}
    for n_ubatch in range(7, 20):
        together = rows([0, 1, 2, 3, 4], n_ubatch)
        for s, row in together.items():
            np.testing.assert_allclose(row, alone[s], atol=1e-5, err_msg=f"n_ubatch {n_ubatch}, sequence {s}")


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("make", [tiny_llama, tiny_gemma3, tiny_mamba, tiny_lfm2])
def test_a_decoder_pools_its_hidden_rows(make: Callable[[], Tiny], pooling: Pooling, unified: bool) -> None:
    model = make().model
    ctx = Context(model, n_ctx=128, n_seq_max=4, n_ubatch=16, pooling=pooling, unified=unified)
    assert ctx.memory.strategy == Seq()
    columns = {3: [1, 2, 3], 0: [4], 1: list(range(5, 19))}
    found = rows_of(ctx, columns)
    for seq_id, tokens in columns.items():
        plain = Context(model, n_ctx=32, keep_hidden=True)
        batch = plain.batch()
        batch.extend(tokens)
        hidden = plain.decode(batch).all_hidden()
        wanted = hidden.mean(axis=0) if pooling == "mean" else hidden[-1]
        np.testing.assert_allclose(found[seq_id], wanted, atol=1e-5)


def test_interleaved_rows_are_pooled_by_sequence(llama: Model) -> None:
    ctx = Context(llama, n_ctx=64, n_seq_max=3, pooling="mean", unified=True)
    batch = ctx.batch()
    batch.extend([1, 9, 2, 8, 3], seq=[0, 2, 0, 2, 0])
    mixed = ctx.decode(batch)
    ctx.memory.clear()
    apart = rows_of(ctx, {0: [1, 2, 3], 2: [9, 8]})
    assert mixed.seq_ids.tolist() == [0, 2]
    np.testing.assert_allclose(mixed.all_pooled(), [apart[0], apart[2]], atol=1e-6)


def test_pooling_none_gives_every_row_in_the_caller_s_order(bert: Model, llama: Model) -> None:
    for model in (bert, llama):
        ctx = Context(model, n_ctx=24, n_seq_max=2, pooling="none")
        batch = ctx.batch()
        batch.extend([7, 8, 9, 10, 11], seq=[1, 0, 1, 0, 1])
        rows = ctx.decode(batch)
        ctx.memory.clear()
        batch.clear()
        batch.extend([7, 9, 11], seq=1)
        np.testing.assert_allclose(rows.all_hidden()[[0, 2, 4]], ctx.decode(batch).all_hidden(), atol=1e-5)
        assert rows.n_outputs == 5
        with pytest.raises(CapabilityError, match="nothing was pooled"):
            rows.pooled(0)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "rank"])
@pytest.mark.usefixtures("on_each_backend")
def test_few_tokens_of_a_high_sequence_id(cross: Model, pooling: Pooling) -> None:
    """F46: pooling tables were sized by tokens and indexed by slot."""
    ctx = Context(cross, n_seq_max=4, pooling=pooling)
    row = rows_of(ctx, {3: [7, 8]})[3]
    np.testing.assert_allclose(row, rows_of(ctx, {0: [7, 8]})[0], atol=1e-6)


@pytest.mark.usefixtures("on_each_backend")
def test_a_mean_is_its_own_sequence_s(bert: Model) -> None:
    """F48: the mean was divided by the whole batch's tokens."""
    ctx = Context(bert, n_seq_max=2)
    both = rows_of(ctx, {0: [5, 6], 1: list(range(5, 15))})
    for seq_id, tokens in enumerate(([5, 6], list(range(5, 15)))):
        np.testing.assert_allclose(both[seq_id], rows_of(ctx, {0: tokens})[0], atol=1e-5)


def test_an_encoder_keeps_nothing(bert: Model) -> None:
    ctx = Context(bert, n_seq_max=2)
    assert ctx.memory.strategy == Whole() and ctx.n_bytes_kv == 0 and ctx.memory.n_used == 0
    first = rows_of(ctx, {0: [5, 6, 7]})
    again = rows_of(ctx, {0: [5, 6, 7]})
    np.testing.assert_array_equal(first[0], again[0])
    batch = ctx.batch()
    batch.extend([5, 6])
    np.testing.assert_array_equal(ctx.encode(batch).pooled(0), ctx.encode(batch).pooled(0))


def test_a_text_above_the_physical_batch_says_what_to_set(bert: Model) -> None:
    """F43: 33 tokens, n_batch 64, n_ubatch 32: the error has both, what to set, and the model's own limit."""
    ctx = Context(bert, n_batch=64, n_ubatch=32)
    batch = ctx.batch()
    batch.extend(np.full(33, 7))
    told = (
        rf"sequence 0 has 33 tokens, but n_ubatch is 32 .* set n_ubatch to 33 or more \(the model takes {N_CTX} at most"
    )
    with pytest.raises(SequenceTooLong, match=told):
        ctx.encode(batch)
    assert ctx.stats.n_ubatches == 0
    batch.clear()
    batch.extend(np.full(32, 7))
    assert ctx.encode(batch).pooled(0).shape == (N_EMBD,), "others are answered still"


def test_n_ubatch_left_out_holds_what_n_batch_holds(bert: Model) -> None:
    """F44: n_batch was raised, n_ubatch silently not."""
    ctx = Context(bert, n_batch=N_CTX)
    assert ctx.n_ubatch == N_CTX
    assert rows_of(ctx, {0: [7] * N_CTX})[0].shape == (N_EMBD,)
    small = Context(bert, n_batch=8)
    batch = Context(bert).batch()
    batch.extend([7] * 20)
    with pytest.raises(BatchTooLarge, match="20 rows, n_batch is 8"):
        small.encode(batch)


def test_positions_beyond_the_model_s_are_refused(bert: Model) -> None:
    ctx = Context(bert)
    batch = ctx.batch()
    batch.extend([7] * (N_CTX + 1))
    with pytest.raises(BeyondModel, match=f"row {N_CTX}: sequence 0 reaches position {N_CTX}.*shorten"):
        ctx.encode(batch)
    with pytest.warns(PolyseqWarning, match="n_ctx 100 clamped to the 48 positions"):
        assert Context(bert, n_ctx=100).n_ctx_seq == N_CTX


def test_rows_of_several_sequences_have_no_one_row(bert: Model, llama: Model) -> None:
    for model in (bert, llama):
        ctx = Context(model, n_ctx=32, n_seq_max=2, unified=True, pooling="mean")
        batch = ctx.batch()
        batch.extend([7, 8], seq={0, 1})
        with pytest.raises(SharedRow, match="row 0 is shared"):
            ctx.decode(batch)


def test_what_a_model_cannot_give_is_refused_before_any_work(bert: Model, llama: Model, cross: Model) -> None:
    """F35: an embedding model asked for text, and the other way round."""
    with pytest.raises(CapabilityError, match="by 'rank': it has no classification head; it can: none, cls"):
        Context(bert, pooling="rank")
    with pytest.raises(CapabilityError, match="cannot pool by 'cls': its rows see only rows before them"):
        Context(llama, pooling="cls")
    with pytest.raises(CapabilityError, match="pooling 'max' is none of none, mean"):
        Context(llama, pooling="max")  # type: ignore[arg-type]
    with pytest.raises(CapabilityError, match="gives embeddings here, not text"):
        Engine(Context(bert), bert)
    with pytest.raises(CapabilityError, match="use decode"):
        Context(llama, n_ctx=8).encode(Context(llama, n_ctx=8).batch())
    ctx = Context(bert)
    batch = ctx.batch()
    batch.add(7, output=True)
    outputs = ctx.encode(batch)
    with pytest.raises(CapabilityError, match="embeddings, not logits"):
        outputs.logits(0)
    with pytest.raises(CapabilityError, match="embeddings, not logits"):
        outputs.argmax()
    with pytest.raises(OutputError, match="sequence 1 was not in this call; it had 0"):
        outputs.pooled(1)
    assert Context(cross).mode.pooling == "rank"
    assert Context(bert).mode.pooling == "mean"


def test_a_bad_sequence_id_names_token_id_and_limit(bert: Model) -> None:
    """F01: two texts in a context of one sequence."""
    ctx = Context(bert, n_seq_max=1)
    batch = Context(bert, n_seq_max=4).batch()
    batch.extend([7, 8, 9, 10], seq=[0, 0, 0, 1])
    before = ctx.memory.columns()
    with pytest.raises(BadSeqId, match=r"row 3: sequence 1 is outside \[0, 1\)"):
        ctx.encode(batch)
    assert ctx.memory.columns() == before


def test_a_kept_layer_of_an_encoder(bert: Model) -> None:
    ctx = Context(bert, n_seq_max=2, keep_layers=(1,), keep_hidden=True)
    batch = ctx.batch()
    batch.extend([7, 8, 9], seq=[0, 1, 0])
    outputs = ctx.encode(batch)
    assert outputs.all_layer(1).shape == outputs.all_hidden().shape == (3, N_EMBD)
    np.testing.assert_allclose(outputs.pooled(0), outputs.all_hidden()[[0, 2]].mean(axis=0), atol=1e-6)


# ---- embed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_seq_max", [1, 2, 3, 256])
@pytest.mark.parametrize("n_batch", [None, 12, 64])
def test_a_list_is_a_loop_of_its_texts(bert: Model, n_seq_max: int, n_batch: int | None) -> None:
    """F01: any list length works: calls are full by tokens or by sequences."""
    alone = [embed([text], model=bert)[0] for text in TEXTS]
    for n in range(1, len(TEXTS) + 1):
        found = embed(TEXTS[:n], model=bert, n_seq_max=n_seq_max, n_batch=n_batch)
        np.testing.assert_allclose(found, alone[:n], atol=1e-5)


def test_duplicates_are_computed_once_and_equal(bert: Model) -> None:
    embedder = Embedder(bert)
    done = embedder.run(["the cat", "dog", "the cat", "THE  cat"])
    np.testing.assert_array_equal(done.rows[[0, 0]], done.rows[[2, 3]])
    assert embedder.runner.context is not None and embedder.runner.context.stats.n_tokens == 4 + 3


def test_an_empty_text_is_what_stands_around_a_text(bert: Model) -> None:
    ctx = Context(bert)
    row = rows_of(ctx, {0: [2, 3]})[0]
    np.testing.assert_allclose(embed([""], model=bert, normalize=False)[0], row, atol=1e-6)
    assert embed([], model=bert).shape == (0, N_EMBD)


def test_rows_have_length_one_unless_asked_otherwise(bert: Model) -> None:
    plain, unit = embed(TEXTS, model=bert, normalize=False), embed(TEXTS, model=bert)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(plain / np.linalg.norm(plain, axis=1, keepdims=True), unit, atol=1e-6)
    assert unit.dtype == np.float32


def test_long_texts_are_truncated_as_the_library_does_or_refused(bert: Model) -> None:
    texts = ["a", "the cat " * 40, "dog", "mat " * 47]
    with pytest.warns(PolyseqWarning, match="2 texts were truncated to the model's 48 tokens: 1, 3"):
        found = embed(texts, model=bert)
    first = bert.tokenizer.encode(texts[1])
    assert len(first) == 82
    wanted = rows_of(Context(bert), {0: [*first[:47], 3]})[0]
    np.testing.assert_allclose(found[1], wanted / np.linalg.norm(wanted), atol=1e-6)
    with pytest.raises(TextsRefused, match="2 of 4 texts refused: text 1: it has 82 tokens, the model takes 48") as e:
        embed(texts, model=bert, too_long="refuse")
    assert [r.index for r in e.value.refused] == [1, 3]
    assert np.isnan(e.value.rows[[1, 3]]).all()
    np.testing.assert_allclose(e.value.rows[[0, 2]], found[[0, 2]], atol=1e-6)


def test_one_bad_text_never_costs_the_others(bert: Model) -> None:
    texts: list[Any] = ["a", "\ud800", 7, "dog", None]
    done = Embedder(bert).run(texts)
    assert [r.index for r in done.refused] == [1, 2, 4]
    assert "lone surrogate" in done.refused[0].reason and "not int" in done.refused[1].reason
    np.testing.assert_allclose(done.rows[[0, 3]], embed(["a", "dog"], model=bert), atol=1e-6)
    nothing = Embedder(bert).run([None])  # type: ignore[list-item]
    assert nothing.rows.shape == (1, N_EMBD) and np.isnan(nothing.rows).all()


def test_n_ubatch_is_raised_to_the_longest_text_and_that_is_said_once(bert: Model) -> None:
    embedder = Embedder(bert, n_ubatch=8, n_batch=16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embedder.run(["the cat"])
    with pytest.warns(PolyseqWarning, match="^n_ubatch 8 and n_batch 16 raised to 22: .* the longest has 22 tokens"):
        found = embedder.run(["a", "cat " * 20])
    ctx = embedder.runner.context
    assert ctx is not None and (ctx.n_ubatch, ctx.n_batch) == (22, 22)
    np.testing.assert_allclose(found.rows, embed(["a", "cat " * 20], model=bert), atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embedder.run(["cat " * 30])


@pytest.mark.parametrize(
    ("sizes", "error", "text"),
    [
        ({"n_ubatch": -1}, ContextError, "n_ubatch is -1, it must be at least 0"),
        ({"n_batch": 0}, ContextError, "n_batch is 0, it must be at least 1"),
        ({"n_seq_max": 0}, BadSeqCount, "n_seq_max is 0, it must be 1 to 256"),
    ],
)
def test_sizes_that_no_context_can_have_are_refused_for_texts_too(
    bert: Model, sizes: dict[str, int], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        embed(["a"], model=bert, **sizes)  # type: ignore[arg-type]


def test_an_n_ubatch_of_0_is_n_batch_for_texts_too(bert: Model) -> None:
    embedder = Embedder(bert, n_ubatch=0, n_batch=24)
    embedder.run(["a"])
    ctx = embedder.runner.context
    assert ctx is not None and (ctx.n_ubatch, ctx.n_batch) == (24, 24)


def test_a_reranker_needs_pieces_around_two_texts(cross: Model) -> None:
    named = {k: v for k, v in cross.metadata.items() if "token_id" not in k and "huggingface" not in k}
    pieces = [f"\u2581{i}" for i in range(cross.architecture.hparams.n_vocab - 1)]
    bare = {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["[UNK]", *pieces]}
    with pytest.raises(TokenizerError, match="has no pieces that stand around and between two texts"):
        rerank("a", ["b"], model=Model(cross.architecture, cross.weights, named | bare))


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_decoder_embeds_texts_too(tmp_path: Path, pooling: Pooling) -> None:
    model = Model.load(write_tiny_gguf(tmp_path / "tiny.gguf"))
    texts = ["bad cab", "a", "dad faced a bad cafe", "bad cab"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = embed(texts, model=model, pooling=pooling, n_seq_max=2, normalize=False)
    for text, row in zip(texts, found, strict=True):
        ctx = Context(model, pooling=pooling, n_ctx=64)
        tokens = model.tokenizer.encode(text).tolist()
        np.testing.assert_allclose(row, rows_of(ctx, {0: tokens})[0], atol=1e-5)
    with pytest.raises(TextsRefused, match="text 1: it has no tokens, and the model puts none around a text"):
        embed(["a", ""], model=model, pooling=pooling)


def test_progress_counts_texts(bert: Model) -> None:
    seen: list[tuple[int, int]] = []
    embed(TEXTS, model=bert, n_batch=12, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (8, 8) and len(seen) > 2 and seen == sorted(seen)


def test_embed_refuses_what_is_no_list_of_texts_and_no_embedding(bert: Model, cross: Model, llama: Model) -> None:
    with pytest.raises(BadColumn, match="one text; give a list"):
        embed("the cat", model=bert)
    with pytest.raises(BadColumn, match="too_long is 'cut'"):
        embed(["a"], model=bert, too_long="cut")  # type: ignore[arg-type]
    with pytest.raises(CapabilityError, match="use rerank"):
        embed(["a"], model=cross)
    with pytest.raises(CapabilityError, match="choose a pooling: last, mean"):
        embed(["a"], model=llama)
    assert embed(["a"], model=cross, pooling="cls").shape == (1, N_EMBD)


# ---- rerank ----------------------------------------------------------------------------------------------


def test_rerank_scores_each_pair_in_order(cross: Model) -> None:
    scores = rerank("the cat", TEXTS, model=cross)
    assert scores.shape == (8,) and scores[1] == scores[6]
    for text, score in zip(TEXTS, scores, strict=True):
        np.testing.assert_allclose(rerank("the cat", [text], model=cross, n_batch=48)[0], score, atol=1e-5)


def test_rerank_truncates_the_text_and_never_the_query(cross: Model) -> None:
    query, texts = "the cat", ["dog", "mat " * 60]
    with pytest.warns(PolyseqWarning, match="1 texts were truncated"):
        scores = rerank(query, texts, model=cross)
    np.testing.assert_allclose(scores[1], rerank(query, ["mat " * 43], model=cross)[0], atol=1e-5)
    with pytest.raises(TextsRefused, match="text 1: it has 65 tokens") as e:
        rerank(query, texts, model=cross, too_long="refuse")
    assert np.isnan(e.value.rows[1]) and e.value.rows[0] == pytest.approx(scores[0], abs=1e-5)
    with pytest.raises(TokenizerError, match="the query has 50 tokens"):
        rerank("cat " * 50, texts, model=cross)


def test_rerank_needs_a_head_of_one_label(bert: Model, tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match="no classification head"):
        rerank("a", ["b"], model=bert)
    three = Model.load(tiny_bert(tmp_path / "three", n_labels=3))
    with pytest.raises(CapabilityError, match="gives 3 labels for a pair"):
        rerank("a", ["b"], model=three)


# ---- packing ---------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 20), max_size=40), st.integers(20, 60), st.integers(1, 10))
def test_calls_hold_every_text_once_within_both_limits(lengths: list[int], n_batch: int, n_seq_max: int) -> None:
    calls = pack(lengths, n_batch=n_batch, n_seq_max=n_seq_max)
    assert sorted(i for call in calls for i in call.tolist()) == list(range(len(lengths)))
    totals = [sum(lengths[i] for i in call) for call in calls]
    assert all(t <= n_batch for t in totals) and all(len(call) <= n_seq_max for call in calls)
    for total, (call, later) in zip(totals, itertools.pairwise(calls), strict=False):
        assert len(call) == n_seq_max or total + lengths[later[0]] > n_batch


def test_poolings_are_llama_cpp_s() -> None:
    assert get_args(Pooling) == ("mean", "cls", "last", "rank")
