"""Linear ops as records: plain, added to a residual, gate times up, rows of a table, rows made 8-bit.

Enters: groups of fuse.py. Leaves: records with the words of linear/words.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyseq.backends.cpu.linear.words import (
    ACTS,
    GLU_SCRATCH_BYTES,
    ROWS_PER_UNIT,
    E,
    F,
    G,
    L,
    gemm_name,
    pair_gemm_name,
    row_name,
    x_words,
)
from polyseq.backends.cpu.panels.panel_kind import GROUP
from polyseq.backends.cpu.panels.panels import Panels
from polyseq.backends.cpu.plan.build import Builder, GoOn, Word, width
from polyseq.backends.cpu.plan.fuse import Form, Group, weight_of
from polyseq.backends.cpu.rows.words import Q
from polyseq.backends.cpu.words.aligned import address
from polyseq.backends.cpu.words.records import S
from polyseq.graph import Input, Node, Ref, Value, Weight, ops

ROWS: frozenset[Form] = frozenset({"rows"})
RECORDS: frozenset[Form] = frozenset({"records"})

_MOST_PANELS = 8  # of a unit
_FLOAT_PANELS = 4  # of a unit of numbers, two pairs
_FLOAT_ROWS = 48
_UNITS_PER_THREAD = 3  # parts of the columns, so that threads end together


def linear(b: Builder, group: Group) -> frozenset[Form]:
    """Changes the builder: a linear op into rows of its own."""
    out = group.last.out
    assert out is not None
    into_rows(b, group.last, b.rows(out))
    return ROWS


def residual(b: Builder, group: Group) -> frozenset[Form] | None:
    """Changes the builder: a linear op added to rows where they are, if nobody wants them as they were."""
    node, add = group.nodes
    assert add.out is not None
    (x,) = (a for a in add.args if a != node.out)
    if not b.dies(x) or add.out in b.late or x in node.args:
        return None
    b.in_place(add.out, x)
    into_rows(b, node, b.rows(x), accumulate=True)
    return ROWS


def activated(b: Builder, group: Group) -> frozenset[Form] | None:
    """Changes the builder: act(x w^T + bias) for weights that are numbers."""
    node, act = group.nodes
    panels = _panels(b, node)
    assert isinstance(act.op, ops.Act) and act.out is not None
    if panels.reads_records or act.op.f not in ACTS:
        return None
    _float_linear(b, node, panels, b.rows(act.out), act=act.op.f)
    return ROWS


def gated(b: Builder, group: Group) -> frozenset[Form]:
    """Changes the builder: act(x gate^T) * (x up^T), as records where nobody wants rows."""
    gate_node, up_node, glu = group.nodes
    assert isinstance(glu.op, ops.Glu) and glu.out is not None
    x, out = gate_node.args[0], glu.out
    gate, up = _panels(b, gate_node), _panels(b, up_node)
    form: Form = "records" if b.wants(out) == RECORDS else "rows"
    block, stride, n_inner = x_words(gate)
    words: dict[int, Word] = {
        G.GEMM: b.kernel(gemm_name(gate)),
        G.X: _x(b, gate, x),
        G.X_BLOCK: block,
        G.X_STRIDE: stride,
        G.N_INNER: n_inner,
        G.PANELS: address(gate.data),
        G.PANEL_BYTES: gate.panel_bytes,
        G.N_PANELS: gate.n_panels,
        G.UP_GEMM: b.kernel(gemm_name(up)),
        G.UP_PANELS: address(up.data),
        G.UP_PANEL_BYTES: up.panel_bytes,
        G.OUT: b.records(out) if form == "records" else b.rows(out),
        G.OUT_STRIDE: b.record_stride(out) if form == "records" else gate.n_out * 4,
        G.N_OUT: gate.n_out,
        G.ACT: ACTS.index(glu.op.act),
        G.PAIR_GEMM: b.kernel(pair_gemm_name(gate)) if gate.kind == up.kind and gate.reads_records else 0,
    }
    b.record(
        f"linear.units.glu_{form}",
        out.shape[0],
        words,
        n_fixed=-(-gate.n_panels // 2),
        per_unit=ROWS_PER_UNIT,
        max_chunk=4,
        scratch_bytes=GLU_SCRATCH_BYTES,
    )
    return frozenset({form})


def get_rows(b: Builder, group: Group) -> frozenset[Form] | None:
    """Changes the builder: rows of a table in panels, by ids that are a column of the step."""
    table, ids = group.last.args
    word = _ID_WORDS.get(ids.name) if isinstance(ids, Input) else None
    if word is None or not isinstance(table, Weight):
        return None
    panels, out = b.weights.panels(table.name), group.last.out
    assert out is not None
    words: dict[int, Word] = {
        E.KERNEL: b.kernel(row_name(panels)),
        E.TABLE: address(panels.data),
        E.PANEL_BYTES: panels.panel_bytes,
        E.N_INNER: x_words(panels)[2],
        E.IDS_WORD: word,
        E.OUT: b.rows(out),
        E.OUT_STRIDE: width(out) * 4,
    }
    b.record("linear.panel_rows.rows", out.shape[0], words, max_chunk=16)
    return ROWS


def quantise(b: Builder, ref: Value | Input) -> None:
    """Changes the builder: rows become records."""
    words: dict[int, Word] = {Q.X: b.rows(ref), Q.X_STRIDE: width(ref) * 4, Q.N_IN: width(ref), Q.OUT: b.records(ref)}
    b.record("rows.quantise.rows", ref.shape[0], words, max_chunk=16)


_ID_WORDS = {"token": S.TOKEN, "out_rows": S.OUT_ROWS}


def into_rows(
    b: Builder, node: Node, out: Word, *, accumulate: bool = False, then: Sequence[Sequence[GoOn]] = ()
) -> None:
    """Changes the builder: a linear op's record. `then` [parts][any number]: what is done with each part of the
    columns; all columns go evenly into that many parts.
    """
    panels = _panels(b, node)
    assert node.out is not None
    if not panels.reads_records:
        _float_linear(b, node, panels, out, accumulate=accumulate, then=then)
        return
    block, stride, n_inner = x_words(panels)
    evenly = _panels_per_unit(panels.n_panels, b.cache.pool.n_threads)
    per_unit = panels.n_panels // len(then) if then else evenly
    words: dict[int, Word] = {
        L.GEMM: b.kernel(gemm_name(panels)),
        L.PAIR_GEMM: b.kernel(pair_gemm_name(panels)),
        L.X: _x(b, panels, node.args[0]),
        L.X_BLOCK: block,
        L.X_STRIDE: stride,
        L.N_INNER: n_inner,
        L.PANELS: address(panels.data),
        L.PANEL_BYTES: panels.panel_bytes,
        L.N_PANELS: panels.n_panels,
        L.PANELS_PER_UNIT: per_unit,
        L.OUT: out,
        L.OUT_STRIDE: panels.n_out * 4,
        L.N_OUT: panels.n_out,
        L.ACCUMULATE: int(accumulate),
        L.BIAS: _bias(b, node),
    }
    b.record(
        "linear.units.rows",
        node.out.shape[0],
        words,
        n_fixed=-(-panels.n_panels // per_unit),
        per_unit=ROWS_PER_UNIT,
        max_chunk=1 if then else 4,
        scratch_bytes=GLU_SCRATCH_BYTES,
        then=then,
    )


def _panels_per_unit(n_panels: int, n_threads: int) -> int:
    """Pure. An even number, so that threads get equally many units of equally many panels where that can be."""
    most = max(2, min(_MOST_PANELS, n_panels // (_UNITS_PER_THREAD * n_threads)))
    return min(range(most // 2 * 2, 0, -2), key=lambda n: n * -(-n_panels // (n * n_threads)))


def _float_linear(
    b: Builder,
    node: Node,
    panels: Panels,
    out: Word,
    *,
    accumulate: bool = False,
    act: str | None = None,
    then: Sequence[Sequence[GoOn]] = (),
) -> None:
    assert node.out is not None
    per_unit = panels.n_panels // len(then) if then else _FLOAT_PANELS
    words: dict[int, Word] = {
        F.GEMM: b.kernel(gemm_name(panels)),
        F.PAIR_GEMM: b.kernel(pair_gemm_name(panels)),
        F.X: b.rows(node.args[0]),
        F.X_STRIDE: panels.n_in * 4,
        F.N_IN: panels.n_in,
        F.PANELS: address(panels.data),
        F.PANEL_BYTES: panels.panel_bytes,
        F.INPUT_BYTES: panels.panel_bytes // (panels.n_groups * GROUP),
        F.N_PANELS: panels.n_panels,
        F.PANELS_PER_UNIT: per_unit,
        F.OUT: out,
        F.OUT_STRIDE: panels.n_out * 4,
        F.N_OUT: panels.n_out,
        F.ACCUMULATE: int(accumulate),
        F.BIAS: _bias(b, node),
        F.ACT: 0 if act is None else 1 + ACTS.index(act),
    }
    b.record(
        "linear.float_linear.rows",
        node.out.shape[0],
        words,
        n_fixed=-(-panels.n_panels // per_unit),
        per_unit=_FLOAT_ROWS,
        max_chunk=1,
        scratch_bytes=GLU_SCRATCH_BYTES,
        then=then,
    )


def _panels(b: Builder, node: Node) -> Panels:
    return b.weights.panels(weight_of(node).name)


def _x(b: Builder, panels: Panels, x: Ref) -> Word:
    return b.records(x) if panels.reads_records else b.rows(x)


def _bias(b: Builder, node: Node) -> int:
    if len(node.args) < 3:
        return 0
    bias = node.args[2]
    assert isinstance(bias, Weight)
    return address(b.weights.vector(bias.name))
