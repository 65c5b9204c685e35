"""Ops over rows as records: element by element, norms, rotation, which rows.

Enters: groups of fuse.py. Leaves: records with the words of rows/words.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from polyseq.backends.cpu.linear.words import ACTS
from polyseq.backends.cpu.plan.build import Builder, GoOn, Late, Word, width
from polyseq.backends.cpu.plan.fuse import Form, Group
from polyseq.backends.cpu.plan.lower_linear import ROWS
from polyseq.backends.cpu.rows.words import W
from polyseq.backends.cpu.words.aligned import address
from polyseq.graph import Input, Node, Ref, Value, Weight, ops

CHUNK = 16  # rows that a thread takes at once, at most
_TURN_DIMS = 32  # rope's kernels turn dims in multiples of this
_ROPES = {"norm": "rows.rope.norm", "neox": "rows.rope.neox"}


def bits(x: float) -> int:
    """Pure. The bits of x as f32."""
    return int(np.float32(x).view(np.int32))


def pairs(b: Builder, group: Group) -> frozenset[Form] | None:
    """Changes the builder: add, mul, glu of two rows."""
    op = group.last.op
    unit = "rows.elements.add" if isinstance(op, ops.Add) else "rows.elements.mul"
    if isinstance(op, ops.Glu):
        unit = f"rows.elements.glu_{op.act}"
    x, y = group.last.args
    return _rows(b, group, unit, x, {W.Y: b.rows(y), W.Y_STRIDE: width(y) * 4})


def scale(b: Builder, group: Group) -> frozenset[Form] | None:
    """Changes the builder: rows times a number."""
    op = group.last.op
    assert isinstance(op, ops.Scale)
    return _rows(b, group, "rows.elements.scale", group.last.args[0], {W.FACTOR: bits(op.factor)})


def act(b: Builder, group: Group) -> frozenset[Form] | None:
    """Changes the builder: an activation that has a kernel."""
    op = group.last.op
    assert isinstance(op, ops.Act)
    return _rows(b, group, f"rows.elements.act_{op.f}", group.last.args[0], {}) if op.f in ACTS else None


def take_rows(b: Builder, group: Group) -> frozenset[Form] | None:
    """Changes the builder: some rows."""
    x, rows = group.last.args
    if not isinstance(rows, Input):
        return None
    return _rows(b, group, "rows.elements.take", x, {W.ROWS: Late(rows)}, may_be_in_place=False)


def select(b: Builder, group: Group) -> frozenset[Form] | None:
    """Changes the builder: rows of one or of the other."""
    mask, x, y = group.last.args
    if not isinstance(mask, Input):
        return None
    words: dict[int, Word] = {W.Y: b.rows(y), W.Y_STRIDE: width(y) * 4, W.ROWS: Late(mask)}
    return _rows(b, group, "rows.elements.select", x, words)


def rms_norm(b: Builder, group: Group) -> frozenset[Form]:
    """Changes the builder: normed rows, records of them, or both."""
    op, out = group.last.op, group.last.out
    assert isinstance(op, ops.RmsNorm) and out is not None
    x, weight = group.last.args
    return row_norm(b, "rows.norm.rms", x, out, {W.WEIGHT: vector(b, weight), W.FACTOR: bits(op.eps)})


def row_norm(b: Builder, unit: str, x: Ref, out: Value, words: Mapping[int, Word]) -> frozenset[Form]:
    """Changes the builder: a norm of whole rows, as rows, records or both."""
    forms = b.wants(out) or ROWS
    place: dict[int, Word] = {
        W.X: b.rows(x),
        W.X_STRIDE: width(x) * 4,
        W.OUT: b.rows(out) if "rows" in forms else 0,
        W.OUT_STRIDE: width(out) * 4,
        W.RECORDS: b.records(out) if "records" in forms else 0,
        W.N: width(x),
    }
    b.record(unit, out.shape[0], {**place, **words}, max_chunk=CHUNK)
    return forms


def by_head(b: Builder, group: Group) -> frozenset[Form] | None:
    """Changes the builder: every head of a row normed, or turned by the row's position."""
    found = head_unit(b, group.last)
    return _rows(b, group, found.unit, group.last.args[0], found.words) if found else None


def head_unit(b: Builder, node: Node) -> GoOn | None:
    """The unit of an op on heads, and its words but for where rows lie; None where there is none."""
    op = node.op
    if isinstance(op, ops.HeadNorm):
        words: dict[int, Word] = {W.WEIGHT: vector(b, node.args[1]), W.FACTOR: bits(op.eps), W.HEAD: op.head_dim}
        return GoOn("rows.norm.head", words)
    assert isinstance(op, ops.Rope)
    _, pos, *factors = node.args
    if op.params.n_rot % _TURN_DIMS or not isinstance(pos, Input):
        return None
    name = factors[0].name if factors and isinstance(factors[0], Weight) else None
    turns = b.turns_word(b.weights.turns(op.params, name), pos)
    return GoOn(_ROPES[op.params.mode], {W.HEAD: op.head_dim, W.N_ROT: op.params.n_rot, W.TURNS: turns})


def _rows(
    b: Builder, group: Group, unit: str, x: Ref, words: Mapping[int, Word], *, may_be_in_place: bool = True
) -> frozenset[Form]:
    """Changes the builder: a unit from rows to rows, in place where nobody wants them as they were."""
    out = group.last.out
    assert out is not None
    source = b.rows(x)
    if may_be_in_place and isinstance(x, Value) and b.dies(x) and out not in b.late:
        b.in_place(out, x)
    record: dict[int, Word] = {W.X: source, W.X_STRIDE: width(x) * 4, W.OUT: b.rows(out), W.OUT_STRIDE: width(out) * 4}
    b.record(unit, out.shape[0], {**record, W.N: width(out), **words}, max_chunk=CHUNK)
    return ROWS


def vector(b: Builder, weight: Ref) -> int:
    """The address of a weight [d] f32."""
    assert isinstance(weight, Weight)
    return address(b.weights.vector(weight.name))
