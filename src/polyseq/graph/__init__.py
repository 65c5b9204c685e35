"""Step 5, what to compute: ops, graphs of them, their inputs, and plans kept by key. Data, no arithmetic."""

from polyseq.graph.builder import GraphBuilder, single_op
from polyseq.graph.graph import KV, KV_SWA, RS, SEQS, Graph, Input, Node, Ref, Value, Weight
from polyseq.graph.inputs import Inputs
from polyseq.graph.plan_cache import PlanCache
from polyseq.graph.wanted import Content, Pooling, Wanted
from polyseq.memory.cache_layer import CacheLayer, KvLayer, RsLayer
from polyseq.memory.cache_part import CachePart

__all__ = [
    "KV",
    "KV_SWA",
    "RS",
    "SEQS",
    "CacheLayer",
    "CachePart",
    "Content",
    "Graph",
    "GraphBuilder",
    "Input",
    "Inputs",
    "KvLayer",
    "Node",
    "PlanCache",
    "Pooling",
    "Ref",
    "RsLayer",
    "Value",
    "Wanted",
    "Weight",
    "single_op",
]
