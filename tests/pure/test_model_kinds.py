"""Architectures gemma3, mamba and lfm2: what a file must hold, what each layer keeps, which graph that gives."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from polyseq import Context
from polyseq.errors import InvalidModelFile, PolyseqWarning, UnsupportedModel
from polyseq.graph import Graph, KvLayer, RsLayer, Wanted
from tiny import Tiny, tiny_llama
from tiny_kinds import N_VOCAB, tiny_gemma3, tiny_lfm2, tiny_mamba

TINY: dict[str, Callable[[], Tiny]] = {"gemma3": tiny_gemma3, "mamba": tiny_mamba, "lfm2": tiny_lfm2}
TENSORS = [(kind, name) for kind, make in TINY.items() for name in make().arrays]
KEYS = [(kind, key) for kind, make in TINY.items() for key in make().metadata if key.startswith(kind)]
OPTIONAL = {
    "sliding_window",
    "sliding_window_pattern",
    "freq_base",
    "head_count_kv",
    "key_length",
    "value_length",
}


def counted(graph: Graph) -> Counter[str]:
    return Counter(type(n.op).__name__ for n in graph.nodes)


# ---- what a file must hold ---------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), TENSORS)
def test_every_tensor_is_needed_in_its_shape(kind: str, name: str) -> None:
    tiny = TINY[kind]()
    with pytest.raises(InvalidModelFile, match=rf"tensor {name} is missing, wanted with shape"):
        _ = Tiny(tiny.metadata, {k: v for k, v in tiny.arrays.items() if k != name}).architecture
    longer = np.concatenate((tiny.arrays[name],) * 2, axis=-1)
    with pytest.raises(InvalidModelFile, match=rf"tensor {name} has shape .*, wanted"):
        _ = Tiny(tiny.metadata, tiny.arrays | {name: longer}).architecture


@pytest.mark.parametrize(("kind", "key"), KEYS)
def test_every_key_is_needed_or_has_a_default(kind: str, key: str) -> None:
    tiny = TINY[kind]()
    without = Tiny({k: v for k, v in tiny.metadata.items() if k != key}, tiny.arrays)
    if (kind != "lfm2" and key.rpartition(".")[2] in OPTIONAL) or key == "lfm2.rope.freq_base":
        if key == "gemma3.attention.head_count_kv":
            with pytest.raises(InvalidModelFile, match="attn_k"):  # as many as heads, which the tensors deny
                _ = without.architecture
        else:
            assert without.architecture.name == kind
    else:
        with pytest.raises(InvalidModelFile, match=rf"metadata key {key} is missing"):
            _ = without.architecture


@pytest.mark.timeout(20)
@pytest.mark.parametrize("value", [0, -1, 10**9, 1.5, "2", True, [], [2, 3.5], float("nan")], ids=str)
@pytest.mark.parametrize(("kind", "key"), KEYS)
def test_absurd_values_are_refused_at_once(kind: str, key: str, value: object) -> None:
    tiny = TINY[kind]()
    changed = Tiny(tiny.metadata | {key: value}, tiny.arrays)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    harmless = (
        (key.endswith(("freq_base", "rms_epsilon")) and number and value > 0)  # type: ignore[operator]
        or (key.endswith(("context_length", "sliding_window", "pattern")) and value == 10**9)
    )
    if harmless and not key.endswith("pattern"):
        _ = changed.architecture
        return
    with pytest.raises((InvalidModelFile, UnsupportedModel)) as refusal:
        _ = changed.architecture
    assert kind in str(refusal.value) or "tensor " in str(refusal.value)


HOSTILE: list[object] = [
    0, -1, 1, 3, 2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1, True, "", "x", -0.5, 1e-320, 1e308, float("nan"), float("inf"),
    [], ["a"], [1], [2**40], [[1]], np.zeros(0, np.int32), np.full(3, -1, np.int32), np.full(3, np.nan),
]  # fmt: skip
UNUSED = ("rope.scaling.type", "rope.scaling.factor", "rope.scale_linear", "expert_count", "attention.causal")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["llama", *TINY])
def test_whatever_a_key_holds_the_file_is_refused_or_runs(kind: str) -> None:
    """As far as logits: what an architecture lets pass must not break a context either."""
    tiny = tiny_llama() if kind == "llama" else TINY[kind]()
    n_ran = 0
    for key in dict.fromkeys((*tiny.metadata, *(f"{kind}.{name}" for name in UNUSED))):
        for value in HOSTILE if key.startswith(kind) else ():
            changed = Tiny(tiny.metadata | {key: value}, tiny.arrays)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", PolyseqWarning)
                    ctx = Context(changed.model, n_ctx=16, n_batch=16, backend="reference")
            except (InvalidModelFile, UnsupportedModel):
                continue
            batch = ctx.batch()
            batch.extend([1, 2, 3], output=True)
            with np.errstate(all="ignore"):
                assert ctx.decode(batch).all_logits().shape == (3, N_VOCAB), (key, value)
            n_ran += 1
    assert n_ran


@pytest.mark.parametrize(
    ("tiny", "match"),
    [
        (tiny_gemma3().with_metadata(final_logit_softcapping=30.0), r"gemma3\.final_logit_softcapping is 30\.0"),
        (tiny_gemma3().with_metadata(rope__scaling__type="yarn"), r"gemma3\.rope\.scaling\.type is 'yarn'"),
        (tiny_mamba().with_metadata(ssm__dt_b_c_rms=True), r"mamba\.ssm\.dt_b_c_rms is True"),
        (tiny_lfm2().with_metadata(expert_count=8), r"lfm2\.expert_count is 8"),
        (tiny_lfm2().with_metadata(attention__head_count_kv=[1, 2, 0]), r"head_count_kv differs .*\[1, 2\]"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_named(tiny: Tiny, match: str) -> None:
    with pytest.raises(UnsupportedModel, match=match):
        _ = tiny.architecture


@pytest.mark.parametrize(
    ("tiny", "match"),
    [
        (tiny_gemma3().with_metadata(attention__sliding_window_pattern=[True, False]), "has 2 values for 3 layers"),
        (tiny_lfm2().with_metadata(attention__head_count_kv=[0, 2]), "has 2 values for 3 layers"),
        (tiny_lfm2().with_metadata(attention__head_count_kv=[0, 0, 0]), "is 0 for every layer: none attends"),
        (tiny_lfm2().with_metadata(shortconv__l_cache=1), r"lfm2\.shortconv\.l_cache is 1, wanted at least 2"),
        (tiny_mamba().with_metadata(ssm__conv_kernel=1), r"mamba\.ssm\.conv_kernel is 1, wanted at least 2"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_named(tiny: Tiny, match: str) -> None:
    with pytest.raises(InvalidModelFile, match=match):
        _ = tiny.architecture


# ---- what layers keep --------------------------------------------------------------------------------

FULL, WINDOW = KvLayer(2, 8, 8), KvLayer(2, 8, 8, n_swa=8)


def test_which_layers_of_gemma3_have_a_window() -> None:
    assert tiny_gemma3().architecture.cache_layers == (WINDOW, WINDOW, FULL)
    by_default = tiny_gemma3(n_layer=13).with_metadata(attention__sliding_window_pattern=None).architecture
    assert [il for il, a in enumerate(by_default.cache_layers) if a == FULL] == [5, 11]
    flags = tiny_gemma3().with_metadata(attention__sliding_window_pattern=np.array([False, True, True]))
    assert flags.architecture.cache_layers == (FULL, WINDOW, WINDOW)
    none = tiny_gemma3().with_metadata(attention__sliding_window=None).architecture
    assert none.cache_layers == (FULL,) * 3
    assert {i.name for i in none.build(Wanted()).inputs()} == {"token", "pos", "kv", "out_rows"}


def test_states_of_mamba_and_lfm2() -> None:
    assert tiny_mamba().architecture.cache_layers == (RsLayer((("conv", (48, 3)), ("ssm", (48, 6)))),) * 2
    conv = RsLayer((("conv", (32, 2)),))
    assert tiny_lfm2().architecture.cache_layers == (conv, FULL, conv)


# ---- which graph -------------------------------------------------------------------------------------


def test_window_layers_turn_by_a_base_of_their_own() -> None:
    tiny = tiny_gemma3().with_metadata(rope__scaling__type="linear", rope__scaling__factor=8.0)
    ropes = [n.op for n in tiny.architecture.build(Wanted()).nodes if type(n.op).__name__ == "Rope"]
    params = [(op.params.freq_base, op.params.freq_scale, op.params.mode) for op in ropes]  # type: ignore[union-attr]
    assert params == [(1e4, 1.0, "neox")] * 4 + [(1e6, 0.125, "neox")] * 2
    shifts = [tiny.architecture.build_shift(il) for il in range(3)]
    assert [[i.name for i in g.inputs()] for g in shifts] == [["shift_swa"], ["shift_swa"], ["shift"]]
    assert [g.nodes[0].op.params.freq_base for g in shifts] == [1e4, 1e4, 1e6]  # type: ignore[union-attr]


def test_only_tokens_are_scaled_not_embeddings() -> None:
    model = tiny_gemma3().architecture
    scales = [counted(model.build(Wanted(content)))["Scale"] for content in ("token", "embd", "mixed")]  # type: ignore[arg-type]
    assert scales == [1, 0, 1]
    nodes = [type(n.op).__name__ for n in model.build(Wanted("mixed")).nodes]
    assert nodes[:3] == ["GetRows", "Scale", "Select"]


@pytest.mark.parametrize("kind", TINY)
def test_without_results_all_that_later_calls_need_is_left(kind: str) -> None:
    model = TINY[kind]().architecture
    kept, full = counted(model.build(Wanted(logits=False))), counted(model.build(Wanted()))
    for op in ("CacheWrite", "Conv", "SelectiveScan"):
        assert kept[op] == full[op]
    assert kept["Linear"] < full["Linear"] and kept["TakeRows"] == 0
    assert not model.build(Wanted(logits=False)).results


def test_a_state_knows_no_positions() -> None:
    assert not tiny_mamba().architecture.build_shift(0).nodes
    lfm2 = tiny_lfm2().architecture
    assert [len(lfm2.build_shift(il).nodes) for il in range(3)] == [0, 1, 0]
