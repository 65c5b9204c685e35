"""Builds a graph node by node, checking every shape as it goes.

Enters: an architecture's calls, top-down. Leaves: a `Graph`. Step 5. A weight that the file lacks or holds in another
shape is the file's fault (`InvalidModelFile`); values that do not fit an op are the architecture's (`ValueError`).
"""

from __future__ import annotations

from polyseq.errors import InvalidModelFile
from polyseq.graph.graph import RS, Graph, Node, Ref, Value, Weight
from polyseq.graph.ops import Op, Shape
from polyseq.weights.weights import Weights


class GraphBuilder:
    """Collects nodes and results; `build` closes the graph."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._nodes: list[Node] = []
        self._results: dict[str, Ref] = {}
        self._n_values = 0

    def weight(self, name: str, *shape: int) -> Weight:
        """Pure. The tensor `name`, which the file must hold with this shape.

        Raises InvalidModelFile naming the tensor, the shape wanted and what was found.
        """
        if name not in self._weights:
            raise InvalidModelFile(f"tensor {name} is missing, wanted with shape {list(shape)}")
        found = tuple(self._weights.info(name).shape)
        if found != shape:
            raise InvalidModelFile(f"tensor {name} has shape {list(found)}, wanted {list(shape)}")
        return Weight(name, shape)

    def optional(self, name: str, *shape: int) -> tuple[Weight, ...]:
        """Pure. `(weight,)` if the file has the tensor, else `()`: to be unpacked into a node's arguments."""
        return (self.weight(name, *shape),) if name in self._weights else ()

    def apply(self, op: Op, *args: Ref) -> Value:
        """Changes the builder: adds a node with a value. Raises ValueError where shapes do not fit."""
        shape = op.out_shape(*(a.shape for a in args))
        if shape is None:
            raise ValueError(f"{op} has no value: it is an effect")
        out = Value(self._n_values, shape)
        self._n_values += 1
        self._nodes.append(Node(op, args, out))
        return out

    def effect(self, op: Op, *args: Ref) -> None:
        """Changes the builder: adds a node that only has an effect. Raises ValueError where shapes do not fit."""
        if op.out_shape(*(a.shape for a in args)) is not None:
            raise ValueError(f"{op} has a value, which would be lost")
        self._nodes.append(Node(op, args, None))

    def result(self, name: str, ref: Ref) -> None:
        """Changes the builder: `ref` is handed out under `name`."""
        self._results[name] = ref

    def build(self) -> Graph:
        """Pure. The graph so far, less the nodes that neither a result nor a later call needs."""
        needed = set(self._results.values())
        kept = []
        for node in reversed(self._nodes):
            # What reads state cells writes them too.
            if node.out is None or node.out in needed or RS in node.args:
                kept.append(node)
                needed.update(node.args)
        return Graph(tuple(reversed(kept)), dict(self._results))


def single_op(op: Op, *args: Ref) -> Graph:
    """Pure. A graph of this one op, so that a backend can be checked op by op against the reference.

    Arguments that another node would compute are given as `Input(name, shape)` and come in `Inputs.rows`. The
    result is named "out"; an op with only an effect has none (read the cache instead).
    Raises ValueError where shapes do not fit.
    """
    shape: Shape | None = op.out_shape(*(a.shape for a in args))
    out = None if shape is None else Value(0, shape)
    return Graph((Node(op, args, out),), {} if out is None else {"out": out})
