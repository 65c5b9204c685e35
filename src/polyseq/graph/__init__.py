"""Step 5, what to compute: ops, graphs of them, their inputs, and plans kept by key. Data, no arithmetic."""

from polyseq.graph.builder import GraphBuilder, single_op
from polyseq.graph.graph import Graph, Input, Node, Ref, Value, Weight
from polyseq.graph.inputs import Inputs
from polyseq.graph.kv_layer import KvLayer
from polyseq.graph.plan_cache import PlanCache
from polyseq.graph.wanted import Content, Wanted

__all__ = [
    "Content",
    "Graph",
    "GraphBuilder",
    "Input",
    "Inputs",
    "KvLayer",
    "Node",
    "PlanCache",
    "Ref",
    "Value",
    "Wanted",
    "Weight",
    "single_op",
]
