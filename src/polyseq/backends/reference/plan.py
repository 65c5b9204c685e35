"""Runs a graph's nodes one after another over a table of registers.

Enters: a graph, its weights, cache tensors; then `Inputs` per ubatch. Leaves: results by name. A register is dropped
after its last reader, so a run holds only the rows in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.reference.cache import ReferenceCache
from polyseq.backends.reference.ops import OPS, OpFn
from polyseq.backends.reference.run import Run
from polyseq.graph import Graph, Input, Inputs, Ref
from polyseq.graph.ops import Op


@dataclass(frozen=True, slots=True)
class _Step:
    fn: OpFn
    op: Op
    args: tuple[int, ...]  # registers read
    out: int | None  # register written
    frees: tuple[int, ...]  # registers nobody reads after this step


class ReferencePlan:
    """A graph ready to run, for ubatches of any size."""

    def __init__(self, graph: Graph, weights: Mapping[str, NDArray[np.float32]], cache: ReferenceCache | None) -> None:
        registers: dict[Ref, int] = {}

        def register(ref: Ref) -> int:
            return registers.setdefault(ref, len(registers))

        self._cache = cache
        self._weights = tuple((register(w), weights[w.name]) for w in graph.weights())
        self._inputs = tuple((register(i), i) for i in graph.inputs())
        last_step = {a: i for i, node in enumerate(graph.nodes) for a in node.args}
        kept = set(graph.results.values())
        steps = []
        for i, node in enumerate(graph.nodes):
            args = tuple(register(a) for a in node.args)
            out = None if node.out is None else register(node.out)
            frees = tuple(register(a) for a in dict.fromkeys(node.args) if last_step[a] == i and a not in kept)
            steps.append(_Step(OPS[type(node.op)], node.op, args, out, frees))
        self._steps = tuple(steps)
        self._results = tuple((name, register(ref), isinstance(ref, Input)) for name, ref in graph.results.items())
        self._n_registers = len(registers)

    def run(self, inputs: Inputs) -> dict[str, NDArray[np.float32]]:
        """Changes cache cells; returns the graph's results by name, each owning its data."""
        values: list[object] = [None] * self._n_registers
        for i, weight in self._weights:
            values[i] = weight
        for i, ref in self._inputs:
            values[i] = inputs.get(ref.name)
        run = Run(self._cache)
        # Rows with NaN are the caller's business and stay in their rows; NumPy's warnings name nothing useful.
        with np.errstate(all="ignore"):
            for step in self._steps:
                out = step.fn(step.op, run, *[values[a] for a in step.args])
                if step.out is not None:
                    values[step.out] = out
                for i in step.frees:
                    values[i] = None
        return {name: _own(values[i], is_input) for name, i, is_input in self._results}


def _own(value: object, is_input: bool) -> NDArray[np.float32]:
    assert isinstance(value, np.ndarray)
    return value.copy() if is_input else value
