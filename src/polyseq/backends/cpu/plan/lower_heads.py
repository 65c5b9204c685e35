"""Rows times a weight and what is done with them head by head, as one record for each weight.

Enters: groups of fuse.py. Leaves: linear records (lower_linear.py) whose parts are whole heads. As soon as a unit has
its part it norms and turns it where it lies, and writes it into the cells, by the units that do so for whole rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from polyseq.backends.cpu.kv.layout import BUNDLE
from polyseq.backends.cpu.panels.panel_kind import N_COLUMNS
from polyseq.backends.cpu.plan.build import Builder, GoOn, Word, width
from polyseq.backends.cpu.plan.fuse import Form, Group
from polyseq.backends.cpu.plan.lower_attention import SIDES, cell_unit
from polyseq.backends.cpu.plan.lower_linear import ROWS, into_rows
from polyseq.backends.cpu.plan.lower_rows import head_unit
from polyseq.backends.cpu.rows.words import C, W
from polyseq.graph import Node, Ref, ops

_PART = 4 * N_COLUMNS  # columns of a part, where heads are narrower


def turned(b: Builder, group: Group) -> frozenset[Form] | None:
    """Changes the builder: rows whose heads are normed or turned."""
    op = group.last.op
    assert isinstance(op, ops.Rope)
    heads = _Heads.of(b, group.nodes, op.head_dim)
    if heads is None:
        return None
    heads.lower(b)
    return ROWS


def written(b: Builder, group: Group) -> frozenset[Form] | None:
    """Changes the builder: K and V into their cells."""
    *nodes, write = group.nodes
    op = write.op
    assert isinstance(op, ops.CacheWrite)
    k, v = (_Heads.of(b, _chain(nodes, x), width(x) // op.n_head_kv) for x in write.args[:2])
    if k is None or v is None:
        return None
    for side, heads in zip(SIDES, (k, v), strict=True):
        heads.lower(b, partial(_cells_of, cell_unit(b, op, side)))
        if side == "k":
            b.beside()
    return frozenset()


@dataclass(frozen=True, slots=True)
class _Heads:
    """A linear op and the units that go on with its heads."""

    linear: Node
    units: Sequence[GoOn]
    outs: Sequence[Ref]  # of these units, all in one place
    head: int  # dims
    n_part: int  # heads of a part

    @classmethod
    def of(cls, b: Builder, chain: Sequence[Node], head: int) -> _Heads | None:
        """Pure but for words of the step; None where heads are no whole panels or an op has no unit."""
        linear, *rest = chain
        outs = [node.out for node in chain if node.out is not None]
        n_heads = width(outs[0]) // head
        n_part = next(n for n in range(max(1, _PART // head), 0, -1) if n_heads % n == 0)
        units = [unit for node in rest if (unit := head_unit(b, node)) is not None]
        fits = n_part * head % N_COLUMNS == 0 and len(units) == len(rest) and outs[-1] not in b.late
        return cls(linear, units, outs, head, n_part) if fits else None

    def lower(self, b: Builder, more: Callable[[int, int], GoOn] | None = None) -> None:
        """Changes the builder: one record. `more(first head, heads)` is done last with each part."""
        made, *outs = self.outs
        for out in outs:
            b.in_place(out, made)
        rows, stride = b.rows(made), width(made) * 4
        assert isinstance(rows, int)

        def part(first: int) -> list[GoOn]:
            at = rows + first * self.head * 4
            place: dict[int, Word] = {W.X: at, W.X_STRIDE: stride, W.OUT: at, W.OUT_STRIDE: stride}
            place[W.N] = self.n_part * self.head
            done = [replace(unit, words={**place, **unit.words}) for unit in self.units]
            if more is None:
                return done
            last = more(first, self.n_part)
            return [*done, replace(last, words={**last.words, C.X: at, C.X_STRIDE: stride})]

        into_rows(b, self.linear, rows, then=[part(i) for i in range(0, width(made) // self.head, self.n_part)])


def _chain(nodes: Sequence[Node], end: Ref) -> list[Node]:
    """Pure. The nodes that lead to `end`, in order."""
    made_by = {node.out: node for node in nodes}
    chain: list[Node] = []
    while end in made_by:
        chain.insert(0, made_by[end])
        end = chain[0].args[0]
    return chain


def _cells_of(unit: GoOn, first: int, n: int) -> GoOn:
    """Pure. The unit for n heads from `first` on."""
    before, size = unit.words[C.OFFSET], unit.words[C.HEAD_BYTES]
    assert isinstance(before, int) and isinstance(size, int)
    return replace(unit, words={**unit.words, C.OFFSET: before + first * BUNDLE * size, C.N_HEAD: n})
