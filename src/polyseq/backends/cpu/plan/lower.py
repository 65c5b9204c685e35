"""Which record each group of ops becomes: a table from rules and ops to lowering functions.

Enters: a group. Leaves: records in the builder, or, for what has no kernel, a call of the reference backend's function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from polyseq.backends.cpu.plan.build import Builder
from polyseq.backends.cpu.plan.fuse import Form, Group
from polyseq.backends.cpu.plan.lower_attention import attention, cell_write
from polyseq.backends.cpu.plan.lower_encoder import layer_norm, mean_pool, position_rows, segment_rows, self_attention
from polyseq.backends.cpu.plan.lower_heads import turned, written
from polyseq.backends.cpu.plan.lower_linear import activated, gated, get_rows, linear, quantise, residual
from polyseq.backends.cpu.plan.lower_rows import act, by_head, pairs, rms_norm, scale, select, take_rows
from polyseq.graph import Input, Value, encoder_ops, ops

# Lowers a group and says in which forms its value now is; None, having done nothing, where it has no kernel for it.
Lowering = Callable[[Builder, Group], frozenset[Form] | None]


def lower(b: Builder, group: Group) -> None:
    """Changes the builder: this group's records, and what brings its value into the forms that others read."""
    for ref in group.reads:
        if isinstance(ref, Input) and "records" in b.wants(ref) and b.first_read(ref):
            quantise(b, ref)
    rule: Any = type(group.last.op) if group.rule == "one" else group.rule
    made = LOWERINGS[rule](b, group) if rule in LOWERINGS else None
    if made is None and group.rule != "one":
        for node in group.nodes:
            lower(b, Group("one", (node,)))
        return
    if made is None:
        b.call(group)
        made = frozenset({"rows"})
    out = group.last.out
    if isinstance(out, Value) and "records" in b.wants(out) and "records" not in made:
        quantise(b, out)


LOWERINGS: Mapping[Any, Lowering] = MappingProxyType(
    {
        "residual": residual,
        "activated": activated,
        "gated": gated,
        "turned": turned,
        "written": written,
        ops.Linear: linear,
        ops.GetRows: get_rows,
        ops.Attention: attention,
        ops.CacheWrite: cell_write,
        ops.RmsNorm: rms_norm,
        ops.HeadNorm: by_head,
        ops.Rope: by_head,
        ops.Add: pairs,
        ops.Mul: pairs,
        ops.Glu: pairs,
        ops.Scale: scale,
        ops.Act: act,
        ops.TakeRows: take_rows,
        ops.Select: select,
        encoder_ops.LayerNorm: layer_norm,
        encoder_ops.SelfAttention: self_attention,
        encoder_ops.MeanPool: mean_pool,
        encoder_ops.PositionRows: position_rows,
        encoder_ops.SegmentRows: segment_rows,
    }
)
