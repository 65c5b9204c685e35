"""Which neighbours of a graph are computed together: rules over ops and readers, none of which knows a model.

Enters: a graph, and which weights have 8-bit rows for input. Leaves: groups in running order, each of which becomes one
or two op records, and for every value the forms its readers want. What no rule matches is a group of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from polyseq.graph import Graph, Node, Ref, Value, Weight, ops

Form = Literal["rows", "records"]
Rule = Literal["one", "residual", "gated", "heads"]


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes computed together. In "one" it is a single node."""

    rule: Rule
    nodes: tuple[Node, ...]

    @property
    def last(self) -> Node:
        """The node whose value leaves the group."""
        return self.nodes[-1]

    @property
    def reads(self) -> tuple[Ref, ...]:
        """What comes from outside, once."""
        inside = {node.out for node in self.nodes}
        return tuple(dict.fromkeys(a for node in self.nodes for a in node.args if a not in inside))


@dataclass(frozen=True, slots=True)
class Fused:
    """A graph in groups."""

    groups: tuple[Group, ...]
    forms: Mapping[Ref, frozenset[Form]]  # of every value and input that a group reads or that is a result


def fused(graph: Graph, reads_records: Callable[[Weight], bool]) -> Fused:
    """Pure. The graph's nodes in groups, each once, every group after those that it reads from."""
    readers = _readers(graph)
    made_by = {node.out: node for node in graph.nodes if node.out is not None}
    kept = set(graph.results.values())

    def inner(ref: Ref, kind: type[ops.Op]) -> Node | None:
        """The node of that kind whose value has one reader and is no result."""
        node = made_by.get(ref) if isinstance(ref, Value) else None
        alone = node is not None and len(readers[ref]) == 1 and ref not in kept
        return node if alone and node is not None and isinstance(node.op, kind) else None

    taken: set[int] = set()
    groups: list[Group] = []
    for node in reversed(graph.nodes):  # from the end, so that a rule sees its last node first
        if id(node) in taken:
            continue
        group = _match(node, inner, reads_records)
        taken |= {id(n) for n in group.nodes}
        groups.append(group)
    groups.reverse()
    return Fused(tuple(groups), _forms(groups, kept, reads_records))


def _match(
    node: Node, inner: Callable[[Ref, type[ops.Op]], Node | None], reads_records: Callable[[Weight], bool]
) -> Group:
    """Pure. The largest group that ends in this node."""
    if isinstance(node.op, ops.Glu):
        gate, up = (inner(a, ops.Linear) for a in node.args)
        if gate and up and _pair(gate, up) and reads_records(_weight(gate)) and reads_records(_weight(up)):
            return Group("gated", (gate, up, node))
    if isinstance(node.op, ops.Add):
        for a in reversed(node.args):
            linear = inner(a, ops.Linear)
            if linear and node.args[0] is not node.args[1]:
                return Group("residual", (linear, node))
    return Group("one", (node,))


def _pair(gate: Node, up: Node) -> bool:
    return gate.args[0] == up.args[0] and len(gate.args) == len(up.args) == 2 and gate is not up


def _weight(linear: Node) -> Weight:
    weight = linear.args[1]
    assert isinstance(weight, Weight)
    return weight


def _readers(graph: Graph) -> dict[Ref, list[Node]]:
    readers: dict[Ref, list[Node]] = {node.out: [] for node in graph.nodes if node.out is not None}
    for node in graph.nodes:
        for a in node.args:
            readers.setdefault(a, []).append(node)
    return readers


def _forms(
    groups: Iterable[Group], kept: set[Ref], reads_records: Callable[[Weight], bool]
) -> dict[Ref, frozenset[Form]]:
    """Pure. Records for the first argument of a linear op with 8-bit input, rows for all else."""
    forms: dict[Ref, set[Form]] = {ref: {"rows"} for ref in kept}
    for group in groups:
        for ref in group.reads:
            forms.setdefault(ref, set())
        for node in group.nodes:
            for i, a in enumerate(node.args):
                if a in forms and not isinstance(a, Weight):
                    records = isinstance(node.op, ops.Linear) and i == 0 and reads_records(_weight(node))
                    forms[a].add("records" if records else "rows")
    return {ref: frozenset(f) for ref, f in forms.items()}
