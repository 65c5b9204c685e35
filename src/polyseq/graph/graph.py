"""A graph: the ops of one ubatch in the order they run, as data.

Enters: nodes from a `GraphBuilder` (an architecture's `build`, or `single_op`). Leaves: a list that a backend turns
into a plan. Step 5. Every value is set once (SSA). Nodes with an effect (`CacheWrite`, `CacheShift`) give no value;
list order is what puts them before the nodes that read the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass

from polyseq.graph.ops import Op, Shape


@dataclass(frozen=True, slots=True)
class Value:
    """The result of a node."""

    id: int
    shape: Shape

    def __str__(self) -> str:
        return f"%{self.id}"


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the model file, in NumPy order ([n_out, n_in])."""

    name: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Input:
    """A field of `Inputs`, or one of its `rows` by name. Views (`kv`, `rs`, ...) have no shape of their own: ()."""

    name: str
    shape: Shape

    def __str__(self) -> str:
        return f"<{self.name}>"


Ref = Value | Weight | Input

# Views of the parts of a memory.
KV, KV_SWA, RS, SEQS = Input("kv", ()), Input("kv_swa", ()), Input("rs", ()), Input("seqs", ())


@dataclass(frozen=True, slots=True)
class Node:
    """One op on its arguments; `out` is None for an op that only has an effect."""

    op: Op
    args: tuple[Ref, ...]
    out: Value | None

    def __str__(self) -> str:
        call = f"{type(self.op).__name__}({', '.join(map(str, self.args))}){_params(self.op)}"
        return call if self.out is None else f"{self.out} {_dims(self.out.shape)} = {call}"


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in running order, and which refs are results under which name."""

    nodes: tuple[Node, ...]
    results: Mapping[str, Ref]

    def weights(self) -> tuple[Weight, ...]:
        """Pure. Every weight the graph reads, once, in order of first use."""
        return tuple(dict.fromkeys(a for n in self.nodes for a in n.args if isinstance(a, Weight)))

    def inputs(self) -> tuple[Input, ...]:
        """Pure. Every input the graph reads, once, in order of first use."""
        refs = [a for n in self.nodes for a in n.args] + list(self.results.values())
        return tuple(dict.fromkeys(a for a in refs if isinstance(a, Input)))

    def describe(self) -> str:
        """Pure. A listing with one line per node, then one per result."""
        lines = [str(node) for node in self.nodes]
        lines += [f"{name} {_dims(ref.shape)} = {ref}" for name, ref in self.results.items()]
        return "\n".join(lines)


def _dims(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _params(op: object) -> str:
    assert is_dataclass(op)
    values = [(f.name, getattr(op, f.name)) for f in fields(op)]
    shown = [_params(v).strip() if is_dataclass(v) else f"{name}={v}" for name, v in values]
    return "".join(f" {text}" for text in shown)
