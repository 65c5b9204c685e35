"""Architecture llama: what a file must hold, which graph each `Wanted` gives, and what running it gives."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, product

import numpy as np
import pytest
from numpy.typing import NDArray

from polyseq.backends import backend
from polyseq.errors import CapabilityError, InvalidModelFile, UnsupportedModel
from polyseq.graph import CachePart, Graph, Inputs, KvLayer, Wanted
from polyseq.models import architecture
from tiny import Tiny, causal, tiny_llama

F32 = NDArray[np.float32]
TOKENS = np.random.default_rng(3).integers(0, 64, (3, 9)).astype(np.int32)


class Runner:
    """A tiny model with cache tensors; runs a graph for each `Wanted`."""

    def __init__(self, tiny: Tiny, *, n_stream: int = 3, n_cells: int = 32) -> None:
        self.architecture = tiny.architecture
        self.loaded = backend("reference").load(tiny.weights)
        self.kv = self.loaded.cache(
            (CachePart("kv", n_stream, n_cells, dict(enumerate(self.architecture.cache_layers))),)
        )

    def __call__(self, wanted: Wanted, inputs: Inputs) -> dict[str, F32]:
        return self.loaded.plan(self.architecture.build(wanted), self.kv).run(inputs)


def layer_rows(a: Runner, b: Runner, il: int, stream: int) -> list[tuple[F32, F32]]:
    """(ours, theirs) for K and V of every cell of a layer."""
    cells = np.arange(32)
    rows_a, rows_b = a.kv.read("kv", stream, cells), b.kv.read("kv", stream, cells)
    return [(rows_a[f"{il}.{name}"], rows_b[f"{il}.{name}"]) for name in "kv"]


def counted(graph: Graph) -> Counter[str]:
    return Counter(type(n.op).__name__ for n in graph.nodes)


# ---- what a file must hold ---------------------------------------------------------------------------


def test_hparams_and_cache_layers() -> None:
    model = tiny_llama(n_layer=3, head_k=6, head_v=10).architecture
    p = model.hparams
    assert (p.n_vocab, p.n_embd, p.n_layer, p.n_ctx_train, p.n_head, p.n_head_kv) == (64, 32, 3, 512, 4, 2)
    assert (p.n_embd_head_k, p.n_embd_head_v, p.n_ff, p.n_rot) == (6, 10, 48, 6)
    assert model.cache_layers == (KvLayer(2, 6, 10),) * 3
    assert model.accepts == {"token", "embd", "mixed"} and model.n_pos == 1


def test_what_may_be_left_out_of_the_metadata() -> None:
    defaults = tiny_llama(n_head_kv=4).with_metadata(
        attention__key_length=None,
        attention__value_length=None,
        attention__head_count_kv=None,
        rope__dimension_count=None,
        rope__freq_base=None,
    )
    assert defaults.architecture.hparams == tiny_llama(n_head_kv=4).architecture.hparams


def test_an_array_that_repeats_one_count() -> None:
    same = tiny_llama().with_metadata(attention__head_count_kv=np.array([2, 2], np.int32))
    assert same.architecture.hparams.n_head_kv == 2
    with pytest.raises(UnsupportedModel, match=r"llama\.attention\.head_count_kv differs between layers: \[2, 1\]"):
        _ = tiny_llama().with_metadata(attention__head_count_kv=[2, 1]).architecture


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(InvalidModelFile, match=rf"metadata key llama\.{key} is missing"):
        _ = tiny_llama().with_metadata(**{key.replace(".", "__"): None}).architecture


ABSURD = {
    "block_count": [10**9, 0, -1, 1.5, "2", True, [], [2, 3.5]],
    "context_length": [0, -5, 1 << 40],
    "embedding_length": [0, 10**12, 33],
    "feed_forward_length": [0, 10**12, 47],
    "attention.head_count": [0, 3, 10**9, 1 << 62],
    "attention.head_count_kv": [0, 3, 10**9],
    "attention.key_length": [0, 10**12, 6],
    "attention.value_length": [0, 10**12, 6],
    "attention.layer_norm_rms_epsilon": [0.0, -1e-5, float("nan"), float("inf"), "x"],
    "rope.dimension_count": [0, 7, 10, -2],
    "rope.freq_base": [0.0, -1.0, float("inf")],
}


@pytest.mark.timeout(5)
@pytest.mark.parametrize(("key", "value"), [(k, v) for k, values in ABSURD.items() for v in values], ids=str)
def test_absurd_values_are_refused_at_once(key: str, value: object) -> None:
    with pytest.raises((InvalidModelFile, UnsupportedModel)) as refusal:
        _ = tiny_llama().with_metadata(**{key.replace(".", "__"): value}).architecture
    assert "llama." in str(refusal.value) or "tensor " in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 8),
        ("rope.scaling.type", "yarn"),
        ("rope.scaling.type", "longrope"),
        ("attention.causal", False),
    ],
)
def test_what_is_not_supported_is_named(key: str, value: object) -> None:
    with pytest.raises(UnsupportedModel, match=rf"llama\.{key} is {value!r}"):
        _ = tiny_llama().with_metadata(**{key.replace(".", "__"): value}).architecture


def test_heads_that_do_not_divide_the_width() -> None:
    with pytest.raises(InvalidModelFile, match=r"llama\.embedding_length 32 is no multiple of .*head_count 3"):
        _ = (
            tiny_llama()
            .with_metadata(attention__head_count=3, attention__head_count_kv=3, attention__key_length=None)
            .architecture
        )


@pytest.mark.parametrize("name", [n for n in tiny_llama(tied=False).arrays if n != "output.weight"])
def test_every_tensor_is_needed_in_its_shape(name: str) -> None:
    tiny = tiny_llama(tied=False)
    array = tiny.arrays[name]
    without = Tiny(tiny.metadata, {k: v for k, v in tiny.arrays.items() if k != name})
    with pytest.raises(InvalidModelFile, match=rf"tensor {name} is missing, wanted with shape"):
        _ = without.architecture
    longer = Tiny(tiny.metadata, tiny.arrays | {name: np.concatenate((array, array), axis=-1)})
    with pytest.raises(InvalidModelFile, match=rf"tensor {name} has shape .*, wanted"):
        _ = longer.architecture


@pytest.mark.parametrize("name", ["output.weight", "blk.1.ffn_up.bias", "rope_freqs.weight"])
def test_optional_tensors_must_fit_too(name: str) -> None:
    tiny = tiny_llama(tied=False, bias=True, rope_freqs=True)
    wrong = Tiny(tiny.metadata, tiny.arrays | {name: np.zeros((3, 3))})
    with pytest.raises(InvalidModelFile, match=rf"tensor {name} has shape \[3, 3\], wanted"):
        _ = wrong.architecture


def test_the_vocabulary_must_be_the_embedding_tables() -> None:
    tiny = tiny_llama()
    good = Tiny(tiny.metadata | {"tokenizer.ggml.tokens": ["a"] * 64}, tiny.arrays)
    assert good.architecture.hparams.n_vocab == 64
    bad = Tiny(tiny.metadata | {"tokenizer.ggml.tokens": ["a"] * 63}, tiny.arrays)
    with pytest.raises(InvalidModelFile, match=r"holds 63 tokens, but token_embd\.weight has 64 rows"):
        _ = bad.architecture


def test_an_unknown_architecture_and_an_unknown_backend_name_what_is_known() -> None:
    with pytest.raises(UnsupportedModel, match="architecture 'rwkv' is not supported; known: llama"):
        architecture("rwkv")
    with pytest.raises(CapabilityError, match="backend 'gpu' is not there; known: auto, cpu, reference"):
        backend("gpu")


# ---- which graph -------------------------------------------------------------------------------------


def test_only_what_is_wanted_is_in_the_graph() -> None:
    model = tiny_llama(n_layer=3).architecture
    full = counted(model.build(Wanted()))
    assert (full["CacheWrite"], full["Attention"], full["Linear"], full["TakeRows"]) == (3, 3, 3 * 7 + 1, 2)
    writes = model.build(Wanted(logits=False, layers=(1,)))
    less = counted(writes)
    # The last layer keeps only the two products that its cache write needs.
    assert (less["CacheWrite"], less["Attention"], less["Linear"], less["TakeRows"]) == (3, 2, 2 * 7 + 2, 0)
    assert "output_norm.weight" not in {w.name for w in writes.weights()}
    assert list(writes.results) == ["layer.1"]
    assert counted(model.build(Wanted(hidden=True)))["TakeRows"] == 1
    assert [n.shape for n in model.build(Wanted(hidden=True)).results.values()] == [("n_tokens", 32), ("n_outputs", 64)]


def test_the_last_layer_is_cut_to_output_rows_after_its_attention() -> None:
    nodes = [type(n.op).__name__ for n in tiny_llama().architecture.build(Wanted()).nodes]
    tail = nodes[len(nodes) - nodes[::-1].index("Attention") - 1 :]
    assert " ".join(tail) == (
        "Attention Linear TakeRows TakeRows Add RmsNorm Linear Linear Glu Linear Add RmsNorm Linear"
    )


def test_the_shift_graph_turns_one_layer() -> None:
    graph = tiny_llama(n_layer=3, rope_freqs=True).architecture.build_shift(2)
    assert counted(graph) == Counter({"CacheShift": 1}) and not graph.results
    assert [i.name for i in graph.inputs()] == ["shift"]


def test_layers_and_contents_that_are_not_there() -> None:
    model = tiny_llama().architecture
    with pytest.raises(CapabilityError, match="layer 2 was asked for; the model has layers 0 to 1"):
        model.build(Wanted(layers=(0, 2)))
    with pytest.raises(CapabilityError, match="content 'audio'"):
        model.build(Wanted(content="audio"))  # type: ignore[arg-type]


# ---- what it gives -----------------------------------------------------------------------------------

MODELS = {
    "plain": tiny_llama(),
    "separate head, biases, factors": tiny_llama(tied=False, bias=True, rope_freqs=True, n_head_kv=1),
    "no groups, own head widths": tiny_llama(n_head_kv=4, head_k=6, head_v=10),
    "one layer, linear scaling": tiny_llama(n_layer=1).with_metadata(
        rope__scaling__type="linear", rope__scaling__factor=4.0
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("wanted", [Wanted(), Wanted(hidden=True), Wanted(logits=False, layers=(0,))], ids=str)
def test_any_cut_gives_the_same_rows(name: str, wanted: Wanted) -> None:
    whole = Runner(MODELS[name])(wanted, causal(TOKENS))
    for cuts in ([0, 4, 9], [0, 1, 2, 3, 8, 9]):
        runner = Runner(MODELS[name])
        parts = [runner(wanted, causal(TOKENS[:, a:b], past=a)) for a, b in pairwise(cuts)]
        for key, rows in whole.items():
            found = np.concatenate([p[key].reshape(3, -1, rows.shape[1]) for p in parts], axis=1)
            np.testing.assert_allclose(found.reshape(rows.shape), rows, atol=2e-5)


def test_sequences_alone_and_in_company() -> None:
    together = Runner(MODELS["plain"])(Wanted(), causal(TOKENS))["logits"].reshape(3, 9, -1)
    for s in range(3):
        alone = Runner(MODELS["plain"])(Wanted(), causal(TOKENS[s : s + 1], first_stream=s))["logits"]
        np.testing.assert_allclose(alone, together[s], atol=2e-5)


@pytest.mark.parametrize(
    ("logits", "hidden", "layers"), list(product([False, True], [False, True], [(), (1,), (0, 1)]))
)
def test_every_wanted_gives_its_results_and_the_same_cache(logits: bool, hidden: bool, layers: tuple[int, ...]) -> None:
    tiny = MODELS["plain"]
    everything, runner = Runner(tiny), Runner(tiny)
    inputs = causal(TOKENS, outputs="last")
    full = everything(Wanted(hidden=True, layers=(0, 1)), inputs)
    found = runner(Wanted(logits=logits, hidden=hidden, layers=layers), inputs)
    names = ["logits"] * logits + ["hidden"] * hidden + [f"layer.{il}" for il in layers]
    assert sorted(found) == sorted(names)
    for key, rows in found.items():
        np.testing.assert_allclose(rows, full[key], atol=2e-5)
    for il, s in product(range(2), range(3)):
        for a, b in layer_rows(runner, everything, il, s):
            np.testing.assert_allclose(a, b, atol=2e-5)


def test_embeddings_of_tokens_give_what_tokens_give() -> None:
    tiny = MODELS["plain"]
    inputs = causal(TOKENS)
    assert inputs.token is not None
    wanted = Runner(tiny)(Wanted(), inputs)["logits"]
    embd = tiny.arrays["token_embd.weight"][inputs.token]
    as_embd = Inputs(embd=embd, pos=inputs.pos, out_rows=inputs.out_rows, kv=inputs.kv)
    np.testing.assert_allclose(Runner(tiny)(Wanted("embd"), as_embd)["logits"], wanted, atol=1e-6)
    is_embd = np.arange(27) % 3 == 0
    mixed = Inputs(
        token=np.where(is_embd, 0, inputs.token),
        embd=np.where(is_embd[:, None], embd, np.float32(np.nan)),
        is_embd=is_embd,
        pos=inputs.pos,
        out_rows=inputs.out_rows,
        kv=inputs.kv,
    )
    np.testing.assert_allclose(Runner(tiny)(Wanted("mixed"), mixed)["logits"], wanted, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_shifted_keys_are_as_if_written_there(name: str) -> None:
    tiny, shift = MODELS[name], np.zeros((3, 32), np.int32)
    runner, moved = Runner(tiny), Runner(tiny)
    inputs = causal(TOKENS)
    assert inputs.pos is not None
    runner(Wanted(logits=False), inputs)
    moved(Wanted(logits=False), Inputs(token=inputs.token, pos=inputs.pos + 11, kv=inputs.kv))
    shift[:, :9] = 11
    for il in range(runner.architecture.hparams.n_layer):
        runner.loaded.plan(runner.architecture.build_shift(il), runner.kv).run(Inputs(shift=shift))
    # Layer 0 is what the shift turns alone; deeper keys come from rows that attention over relative positions gave.
    for il, s in product(range(runner.architecture.hparams.n_layer), range(3)):
        for a, b in layer_rows(runner, moved, il, s):
            np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize("content", ["token", "embd"])
def test_results_own_their_data(content: str) -> None:
    tiny = MODELS["plain"]
    runner = Runner(tiny)
    embd = np.random.default_rng(0).standard_normal((27, 32)).astype(np.float32)
    base = causal(TOKENS)
    wanted = Wanted(content, hidden=True, layers=(0, 1))  # type: ignore[arg-type]
    plan = runner.loaded.plan(runner.architecture.build(wanted), runner.kv)
    first = plan.run(Inputs(token=base.token, embd=embd, pos=base.pos, out_rows=base.out_rows, kv=base.kv))
    kept = {name: rows.copy() for name, rows in first.items()}
    embd[...] = 7
    other = causal(63 - TOKENS)
    second = plan.run(Inputs(token=other.token, embd=embd, pos=other.pos, out_rows=other.out_rows, kv=other.kv))
    for name, rows in first.items():
        np.testing.assert_array_equal(rows, kept[name])
        assert not np.array_equal(rows, second[name])
        rows[...] = 0  # writable, and nobody else's
    for name, rows in plan.run(
        Inputs(token=other.token, embd=embd, pos=other.pos, out_rows=other.out_rows, kv=other.kv)
    ).items():
        np.testing.assert_array_equal(rows, second[name])


def test_no_outputs_give_no_rows() -> None:
    inputs = causal(TOKENS)
    none = Inputs(token=inputs.token, pos=inputs.pos, out_rows=np.zeros(0, np.int32), kv=inputs.kv)
    assert Runner(MODELS["plain"])(Wanted(), none)["logits"].shape == (0, 64)


def test_nan_in_one_sequence_and_in_unused_cells_stays_there() -> None:
    tiny = MODELS["plain"]
    inputs = causal(TOKENS)
    assert inputs.token is not None
    wanted = Runner(tiny)(Wanted(), inputs)["logits"].reshape(3, 9, -1)
    embd = tiny.arrays["token_embd.weight"][inputs.token].copy()
    embd[9 + 4] = np.nan  # sequence 1, position 4
    runner = Runner(tiny)
    as_embd = Inputs(embd=embd, pos=inputs.pos, out_rows=inputs.out_rows, kv=inputs.kv)
    found = runner(Wanted("embd"), as_embd)["logits"].reshape(3, 9, -1)
    assert np.isnan(found[1, 4:]).all()
    np.testing.assert_allclose(found[[0, 2]], wanted[[0, 2]], atol=2e-5)
    np.testing.assert_allclose(found[1, :4], wanted[1, :4], atol=2e-5)


def test_reference_plan_takes_only_its_own_cache_tensors() -> None:
    model = tiny_llama().architecture
    loaded = backend("auto").load(tiny_llama().weights)
    with pytest.raises(TypeError, match="cannot use cache tensors of type str"):
        loaded.plan(model.build(Wanted()), "cache")  # type: ignore[arg-type]
