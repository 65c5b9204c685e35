"""Which bytes of the panels a linear kernel asks for before it needs them.

Enters: where a panel lies and how often it is passed through. Leaves: a function that a kernel calls once for each
group of 32 inputs, and that emits prefetches.
"""

from __future__ import annotations

from collections.abc import Callable

from polyseq.backends.cpu.ir.emit import Emit, Value
from polyseq.backends.cpu.panels.panel_kind import SUPER, PanelKind

LINE = 64  # bytes that memory gives at once

# asks(i of a group, where the group lies): asks for bytes that are needed later
Asks = Callable[[Value, Value], None]


def near(e: Emit, kind: PanelKind, ahead: int) -> Asks:
    """Each group asks for as many bytes, `ahead` bytes further on."""

    def asks(_: Value, group: Value) -> None:
        for offset in range(0, kind.group_bytes, LINE):
            e.prefetch(group, ahead + offset)

    return asks


def next_panel(
    e: Emit, kind: PanelKind, panel: Value, n_groups: Value, i_pass: Value, n_passes: Value, least_passes: int
) -> Asks:
    """Each pass through the panel asks for its share of the panel behind it, each group for its share of that."""
    size = kind.group_bytes + kind.head_bytes // SUPER
    share = e.b.udiv(e.i64(size), n_passes)
    first = e.add(e.add(panel, e.mul(n_groups, size)), e.b.mul(e.b.mul(i_pass, n_groups), share))

    def asks(g: Value, _: Value) -> None:
        address = e.add(first, e.b.mul(g, share))
        for offset in range(0, -(-size // least_passes), LINE):
            e.prefetch(address, offset)

    return asks


def nothing(_: Value, group: Value) -> None:
    """Asks for nothing."""
