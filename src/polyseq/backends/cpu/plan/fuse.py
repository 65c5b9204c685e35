"""Which neighbours of a graph are computed together: rules over ops and readers, none of which knows a model.

Enters: a graph, and which weights have 8-bit rows for input. Leaves: groups in running order, each of which becomes one
or two op records, and for every value the forms its readers want. What no rule matches is a group of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from polyseq.graph import Graph, Node, Ref, Value, Weight, ops

Form = Literal["rows", "records"]
Rule = Literal["one", "residual", "activated", "gated", "turned", "written"]
# The node of that kind whose value has one reader and is no result.
Inner = Callable[[Ref, type[ops.Op]], Node | None]


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes computed together. In "one" it is a single node."""

    rule: Rule
    nodes: tuple[Node, ...]
    phase: int = 0  # groups of one phase need nothing of each other

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
        """See `Inner`."""
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
    return Fused(_in_phases(groups), _forms(groups, kept, reads_records))


def _in_phases(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Pure. Each group in the first phase after those of all that it needs; a phase's groups are neighbours.

    What reads the cache of a layer needs what was written to it. What is added to in place needs all who read it
    before.
    """
    phase_of: dict[Ref | tuple[str, int], int] = {}  # of a value, or of a layer's cells
    last_read: dict[Ref, int] = {}
    placed = []
    for group in groups:
        needs = [phase_of.get(ref, -1) for ref in group.reads]
        il = getattr(group.last.op, "il", None)
        if il is not None:
            needs.append(phase_of.get(("cells", il), -1))
        if group.rule == "residual":
            needs += [last_read.get(ref, -1) for ref in group.reads]
        phase = 1 + max(needs, default=-1)
        placed.append(replace(group, phase=phase))
        for ref in group.reads:
            last_read[ref] = max(phase, last_read.get(ref, -1))
        if il is not None:
            phase_of["cells", il] = phase
        if group.last.out is not None:
            phase_of[group.last.out] = phase
    return tuple(sorted(placed, key=lambda group: group.phase))


def _match(node: Node, inner: Inner, reads_records: Callable[[Weight], bool]) -> Group:
    """Pure. The largest group that ends in this node."""
    if isinstance(node.op, ops.Glu):
        gate, up = (inner(a, ops.Linear) for a in node.args)
        if gate and up and _pair(gate, up) and reads_records(weight_of(gate)) == reads_records(weight_of(up)):
            return Group("gated", (gate, up, node))
    if isinstance(node.op, ops.Add):
        for a in reversed(node.args):
            linear = inner(a, ops.Linear)
            if linear and node.args[0] is not node.args[1]:
                return Group("residual", (linear, node))
    if isinstance(node.op, ops.Rope):
        chain = _heads(node, inner)
        if chain:
            return Group("turned", chain)
    if isinstance(node.op, ops.CacheWrite):
        k, v = (_from(a, inner) for a in node.args[:2])
        if k and v:
            return Group("written", (*k, *v, node))
    if isinstance(node.op, ops.Act):
        linear = inner(node.args[0], ops.Linear)
        if linear:
            return Group("activated", (linear, node))
    return Group("one", (node,))


def _from(ref: Ref, inner: Inner) -> tuple[Node, ...]:
    """Pure. What makes `ref` of rows times a weight, head by head; nothing where it is made in another way."""
    linear = inner(ref, ops.Linear)
    by_head = inner(ref, ops.Rope) or inner(ref, ops.HeadNorm)
    return (linear,) if linear else _heads(by_head, inner) if by_head else ()


def _heads(node: Node, inner: Inner) -> tuple[Node, ...]:
    """Pure. The linear op, and what is done to its heads up to `node`."""
    before = _from(node.args[0], inner)
    return (*before, node) if before else ()


def _pair(gate: Node, up: Node) -> bool:
    return gate.args[0] == up.args[0] and len(gate.args) == len(up.args) == 2 and gate is not up


def weight_of(linear: Node) -> Weight:
    """Pure. The matrix of a linear op."""
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
                    records = isinstance(node.op, ops.Linear) and i == 0 and reads_records(weight_of(node))
                    forms[a].add("records" if records else "rows")
    return {ref: frozenset(f) for ref, f in forms.items()}
