"""Graphs become records: which ops join, where values lie, and that every op computes what the reference does."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from polyseq.backends import RunOptions, backend
from polyseq.backends.cpu.plan.arena import Lifetime, offsets
from polyseq.backends.cpu.plan.fuse import Fused, fused
from polyseq.errors import CapabilityError
from polyseq.graph import Graph, Input, Inputs, Ref, Wanted, Weight, ops, single_op
from polyseq.graph.builder import GraphBuilder
from polyseq.weights import ArrayWeights
from tiny import tiny_llama

F32 = NDArray[np.float32]


# ---- where values lie ----------------------------------------------------------------------------------

lives = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8), st.integers(0, 5000)), max_size=25)


@settings(max_examples=200, deadline=None)
@given(lives)
def test_no_two_values_are_in_one_place_at_a_time(drawn: list[tuple[int, int, int]]) -> None:
    lifetimes = {i: Lifetime(first, first + more, n) for i, (first, more, n) in enumerate(drawn)}
    places, n_bytes = offsets(lifetimes)
    assert set(places) == set(lifetimes)
    for i, a in lifetimes.items():
        assert places[i] % 64 == 0 and places[i] + a.n_bytes <= n_bytes
        for j, b in lifetimes.items():
            if i < j and a.first <= b.last and b.first <= a.last and a.n_bytes and b.n_bytes:
                assert places[i] + a.n_bytes <= places[j] or places[j] + b.n_bytes <= places[i]


def test_places_are_used_again() -> None:
    chain = {i: Lifetime(i, i + 1, 1000) for i in range(50)}
    assert offsets(chain)[1] <= 2 * 1024


# ---- which ops join ------------------------------------------------------------------------------------


def groups_of(graph: Graph, *, records: bool = True) -> Fused:
    return fused(graph, lambda _: records)


def rules(f: Fused) -> Counter[str]:
    return Counter(g.rule if g.rule != "one" else type(g.last.op).__name__ for g in f.groups)


@pytest.mark.parametrize("wanted", [Wanted(), Wanted(logits=False), Wanted(hidden=True), Wanted(layers=(0, 1))])
@pytest.mark.parametrize("records", [True, False])
def test_every_node_is_in_one_group_after_what_it_reads(wanted: Wanted, records: bool) -> None:
    graph = tiny_llama(n_layer=3).architecture.build(wanted)
    f = groups_of(graph, records=records)
    nodes = [id(n) for g in f.groups for n in g.nodes]
    assert sorted(nodes) == sorted(id(n) for n in graph.nodes)
    known: set[Ref | None] = set()
    for g in f.groups:
        assert all(ref in known or not hasattr(ref, "id") for ref in g.reads)
        known |= {n.out for n in g.nodes}
    effects = [n for n in graph.nodes if isinstance(n.op, ops.CacheWrite | ops.Attention)]
    assert [n for g in f.groups for n in g.nodes if isinstance(n.op, ops.CacheWrite | ops.Attention)] == effects


def test_a_llama_layer_in_groups() -> None:
    graph = tiny_llama(n_layer=2).architecture.build(Wanted())
    found = rules(groups_of(graph))
    assert found["residual"] == 3 and found["gated"] == 2  # the last layer takes rows before it adds
    assert found["turned"] == 2 and found["written"] == 2
    assert not found.keys() & {"Glu", "Rope", "CacheWrite"}


def test_queries_that_are_read_before_they_are_turned_are_turned_by_themselves() -> None:
    x, pos, w = Input("x", ("n", 64)), Input("pos", (1, "n")), Weight("w", (64, 64))
    g = GraphBuilder(ArrayWeights({"w": np.zeros((64, 64), np.float32)}))
    made = g.apply(ops.Linear(), x, w)
    g.result("out", g.apply(ops.Rope(64, ops.RopeParams(64, 10000.0)), made, pos))
    assert rules(groups_of(g.build())) == {"turned": 1}
    g.result("before", made)
    assert rules(groups_of(g.build())) == {"Linear": 1, "Rope": 1}


def test_a_value_that_is_a_result_joins_nothing() -> None:
    w = Weight("w", (32, 32))
    x, y = Input("x", ("n", 32)), Input("y", ("n", 32))
    linear = single_op(ops.Linear(), x, w).nodes[0]
    assert linear.out is not None
    add = single_op(ops.Add(), y, linear.out).nodes[0]
    assert add.out is not None
    out = type(add.out)(1, add.out.shape)
    nodes = (linear, type(add)(add.op, add.args, out))
    assert rules(groups_of(Graph(nodes, {"out": out}))) == {"residual": 1}
    assert rules(groups_of(Graph(nodes, {"out": out, "inner": linear.out}))) == {"Linear": 1, "Add": 1}


def test_forms_are_what_readers_want() -> None:
    graph = tiny_llama(n_layer=1).architecture.build(Wanted(hidden=True))
    hidden = graph.results["hidden"]
    assert groups_of(graph).forms[hidden] == {"rows"}  # TakeRows stands between it and the head
    norm = next(n for n in graph.nodes if isinstance(n.op, ops.RmsNorm))
    assert norm.out is not None
    assert groups_of(graph).forms[norm.out] == {"records"}
    assert groups_of(graph, records=False).forms[norm.out] == {"rows"}


# ---- every op against the reference --------------------------------------------------------------------


def random(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def both(op: Any, *args: Ref, weights: dict[str, F32] | None = None, **inputs: Any) -> tuple[F32, F32]:
    """What the reference and this backend make of one op."""
    graph, stored = single_op(op, *args), ArrayWeights(weights or {"unused": np.zeros(1)})
    out = [backend(name).load(stored).plan(graph, None).run(Inputs(**inputs))["out"] for name in ("reference", "cpu")]
    return out[0], out[1]


def close(pair: tuple[F32, F32], tolerance: float = 1e-5) -> None:
    wanted, found = pair
    assert found.dtype == np.float32 and found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * max(1.0, float(np.abs(wanted).max(initial=0))))


def rows(name: str, x: F32) -> Input:
    return Input(name, ("n", x.shape[1]))


@pytest.mark.parametrize("n", [1, 2, 5, 13, 100, 600])
def test_ops_of_rows(n: int) -> None:
    x, y = random(n, 48), random(n, 48, seed=1)
    given = {"x": x, "y": y}
    a, b = rows("x", x), rows("y", y)
    weight = {"w": random(48, seed=2), "m": random(40, 48, seed=3), "b": random(40, seed=4), "h": random(16, seed=5)}
    w, m, bias, h = Weight("w", (48,)), Weight("m", (40, 48)), Weight("b", (40,)), Weight("h", (16,))
    close(both(ops.RmsNorm(1e-5), a, w, weights=weight, rows=given))
    close(both(ops.HeadNorm(16, 1e-6), a, h, weights=weight, rows=given))
    close(both(ops.Linear(), a, m, weights=weight, rows=given))
    close(both(ops.Linear(), a, m, bias, weights=weight, rows=given))
    for act in ("silu", "gelu_tanh", "gelu"):
        close(both(ops.Glu(act), a, b, rows=given))
        close(both(ops.Act(act), a, rows=given))
    close(both(ops.Add(), a, b, rows=given))
    close(both(ops.Mul(), a, b, rows=given))
    close(both(ops.Scale(0.3), a, rows=given))
    close(both(ops.Columns(16, 32), a, rows=given))
    picked = np.array([n - 1, 0], np.int32)
    close(both(ops.TakeRows(), a, Input("out_rows", ("n_outputs",)), rows=given, out_rows=picked), 0)
    mask = np.arange(n) % 2 == 0
    close(both(ops.Select(), Input("is_embd", ("n",)), a, b, rows=given, is_embd=mask), 0)


def test_get_rows() -> None:
    table = {"t": random(50, 24)}
    ids = np.array([3, 0, 49, 3], np.int32)
    close(both(ops.GetRows(), Weight("t", (50, 24)), Input("token", ("n_tokens",)), weights=table, token=ids), 0)


@pytest.mark.parametrize("mode", ["norm", "neox"])
@pytest.mark.parametrize("n_rot", [16, 8])
@pytest.mark.parametrize("factors", [False, True])
def test_rope(mode: Any, n_rot: int, factors: bool) -> None:
    x = random(7, 48)
    pos = np.array([[0, 1, 2, 500, 4000, 9, 30000]], np.int32)
    extra = (Weight("f", (n_rot // 2,)),) if factors else ()
    op = ops.Rope(16, ops.RopeParams(n_rot, 10000.0, 0.5, mode=mode))
    args = (Input("x", ("n", 48)), Input("pos", ("n_pos", "n")), *extra)
    weights = {"f": np.linspace(1, 8, n_rot // 2, dtype=np.float32)}
    close(both(op, *args, weights=weights, rows={"x": x}, pos=pos))


def test_results_own_their_data() -> None:
    x = Input("x", ("n", 8))
    plan = backend("cpu").load(ArrayWeights({"unused": np.zeros(1)})).plan(single_op(ops.Scale(2.0), x), None)
    first = plan.run(Inputs(rows={"x": np.ones((3, 8), np.float32)}))["out"]
    second = plan.run(Inputs(rows={"x": np.full((200, 8), 5, np.float32)}))["out"]
    assert (first == 2).all() and (second == 10).all() and second.shape == (200, 8)


def test_options_that_are_not_there_are_refused() -> None:
    model = backend("cpu").load(ArrayWeights({"unused": np.zeros(1)}))
    with pytest.raises(CapabilityError, match="n_threads is 0, it must be 1 to 256"):
        model.cache((), RunOptions(n_threads=0))
    with pytest.raises(CapabilityError, match="kv_type 'f64' is not there; known: bf16"):
        model.cache((), RunOptions(kv_type="f64"))
    reference = backend("reference").load(ArrayWeights({"unused": np.zeros(1)}))
    with pytest.raises(CapabilityError, match="takes no n_threads"):
        reference.cache((), RunOptions(n_threads=2))
    with pytest.raises(CapabilityError, match="keeps K and V as f32, not int8"):
        reference.cache((), RunOptions(kv_type="int8"))


def test_a_machine_of_more_cores_than_threads_are_good_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def pool(n_threads: int, *_: object, **__: object) -> None:
        asked.append(n_threads)
        raise MemoryError("no threads of this test")

    monkeypatch.setattr("polyseq.backends.cpu.backend.n_cores", lambda: 384)
    monkeypatch.setattr("polyseq.backends.cpu.backend.Pool", pool)
    with pytest.raises(MemoryError):
        backend("cpu").load(ArrayWeights({"unused": np.zeros(1)})).cache((), RunOptions())
    assert asked == [256]


def test_cache_tensors_of_another_backend_are_refused() -> None:
    weights = ArrayWeights({"unused": np.zeros(1)})
    graph = single_op(ops.Scale(2.0), Input("x", ("n", 8)))
    with pytest.raises(TypeError, match="cannot use cache tensors of type ReferenceCache"):
        backend("cpu").load(weights).plan(graph, backend("reference").load(weights).cache(()))
