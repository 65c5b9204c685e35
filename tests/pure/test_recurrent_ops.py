"""Ops that carry a state, on the reference backend, against their formulas in float64 and plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from polyseq.backends import backend
from polyseq.backends.reference.cache import ReferenceCache
from polyseq.graph import RS, CachePart, Input, Inputs, RsLayer, Weight, single_op
from polyseq.graph.recurrent_ops import Conv, SelectiveScan
from polyseq.memory.rs_view import RsView
from polyseq.weights import ArrayWeights

F32 = NDArray[np.float32]
IL, WIDTH, N_KERNEL, N_STATE, N_CELLS = 3, 6, 4, 5, 12
LAYER = RsLayer((("conv", (WIDTH, N_KERNEL - 1)), ("ssm", (WIDTH, N_STATE))))


def random(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def state_cells() -> ReferenceCache:
    """Cells full of random states, so that a read from the wrong one shows."""
    cache = ReferenceCache((CachePart("rs", 1, N_CELLS, {IL: LAYER}),))
    for i, states in enumerate(cache.states[IL].values()):
        states[...] = random(*states.shape, seed=40 + i)
    return cache


def view(src: list[int], dst: list[list[int]]) -> RsView:
    return RsView(len(src), len(dst[0]), np.array(src, np.int32), np.array(dst, np.int32))


def run(op: Any, rows: dict[str, F32], weights: dict[str, F32], rs: RsView, cache: ReferenceCache, order: str) -> F32:
    refs = {name: Input(name, ("n", x.shape[1])) for name, x in rows.items()}
    refs |= {name: Weight(name, w.shape) for name, w in weights.items()}  # type: ignore[dict-item]
    graph = single_op(op, *[refs[name] for name in order.split()], RS)
    plan = backend("reference").load(ArrayWeights(weights)).plan(graph, cache)
    out = plan.run(Inputs(rs=rs, rows=rows))["out"]
    assert out.dtype == np.float32 and out.flags.c_contiguous
    return out


VIEWS = {
    "new sequences, last state kept": view([-1, -1], [[-1, -1, 4], [-1, -1, 0]]),
    "going on": view([7, 2], [[-1, -1, 4], [-1, -1, 0]]),
    "snapshots of the last rows": view([7, -1, 2], [[-1, 3, 4], [-1, 9, 0], [-1, 1, 5]]),
    "one row each": view([7, 2, -1, 11], [[3], [4], [5], [6]]),
    "nothing kept": view([7, -1], [[-1, -1], [-1, -1]]),
    "one sequence, longer than the kernel": view([8], [[-1, 0, -1, -1, -1, -1, 5, 6]]),
    "two branches of one state": view([7, 7], [[0, 1], [2, 3]]),
}


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_conv(name: str, with_bias: bool) -> None:
    rs, cache = VIEWS[name], state_cells()
    before = cache.states[IL]["conv"].copy()
    n = rs.n_seqs * rs.n_seq_tokens
    x, weight, bias = random(n, WIDTH), random(WIDTH, N_KERNEL, seed=1), random(WIDTH, seed=2)
    weights = {"w": weight, "b": bias} if with_bias else {"w": weight}
    out = run(Conv(IL, N_KERNEL), {"x": x}, weights, rs, cache, "x w b" if with_bias else "x w")

    wanted, states = np.zeros((n, WIDTH)), before.copy()
    for s in range(rs.n_seqs):
        past = np.zeros((N_KERNEL - 1, WIDTH)) if rs.src[s] < 0 else before[rs.src[s]].T
        inputs = [*past, *x.reshape(rs.n_seqs, -1, WIDTH)[s]]
        for t in range(rs.n_seq_tokens):
            seen = np.array(inputs[t : t + N_KERNEL], np.float64)
            wanted[s * rs.n_seq_tokens + t] = (seen * weight.T).sum(axis=0) + (bias if with_bias else 0)
            if rs.dst[s, t] >= 0:
                states[rs.dst[s, t]] = np.array(inputs[t + 1 : t + N_KERNEL]).T
    np.testing.assert_allclose(out, wanted, atol=2e-6)
    np.testing.assert_array_equal(cache.states[IL]["conv"], states)


@pytest.mark.parametrize("name", VIEWS)
def test_selective_scan(name: str) -> None:
    rs, cache = VIEWS[name], state_cells()
    before = cache.states[IL]["ssm"].copy()
    n = rs.n_seqs * rs.n_seq_tokens
    rows = {"x": random(n, WIDTH), "dt": np.abs(random(n, WIDTH, seed=1)), "b": random(n, N_STATE, seed=2)}
    rows["c"] = random(n, N_STATE, seed=3)
    weights = {"a": -np.abs(random(WIDTH, N_STATE, seed=4)), "d": random(WIDTH, seed=5)}
    out = run(SelectiveScan(IL), rows, weights, rs, cache, "x dt a b c d")

    x, dt, b, c = (rows[key].astype(np.float64) for key in ("x", "dt", "b", "c"))
    wanted, states = np.zeros((n, WIDTH)), before.copy()
    for s in range(rs.n_seqs):
        h = np.zeros((WIDTH, N_STATE)) if rs.src[s] < 0 else before[rs.src[s]].astype(np.float64)
        for t in range(rs.n_seq_tokens):
            i = s * rs.n_seq_tokens + t
            for j, k in np.ndindex(WIDTH, N_STATE):
                h[j, k] = np.exp(dt[i, j] * weights["a"][j, k]) * h[j, k] + dt[i, j] * x[i, j] * b[i, k]
            wanted[i] = h @ c[i] + weights["d"] * x[i]
            if rs.dst[s, t] >= 0:
                states[rs.dst[s, t]] = h
    np.testing.assert_allclose(out, wanted, atol=3e-6)
    np.testing.assert_allclose(cache.states[IL]["ssm"], states, atol=3e-6)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_in_other_state_cells_does_not_matter(poison: float) -> None:
    rs = view([-1, 2], [[-1, 4], [-1, 0]])
    clean, dirty = state_cells(), state_cells()
    dirty.states[IL]["conv"][np.arange(N_CELLS) != 2] = poison
    x, weights = random(4, WIDTH), {"w": random(WIDTH, N_KERNEL, seed=1)}
    a, b = (run(Conv(IL, N_KERNEL), {"x": x}, weights, rs, cache, "x w") for cache in (clean, dirty))
    np.testing.assert_array_equal(a, b)
    for cell in (4, 0):
        np.testing.assert_array_equal(clean.states[IL]["conv"][cell], dirty.states[IL]["conv"][cell])
