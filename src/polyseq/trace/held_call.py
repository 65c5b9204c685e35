"""A call that is told later, with others: what is kept of it until then.

Enters: the steps of a call that is placed, then those of its ubatches, then its end. Leaves: its lines.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from polyseq.memory import Slot
from polyseq.split.rows import Rows
from polyseq.trace.events import Checked, Computed, Ended, Placed, PlacedUbatch, Settled
from polyseq.trace.lines import quoted, template
from polyseq.trace.steps import NO_CELLS, Step, laps


class HeldCall:
    """One call that may succeed, and is told if it does."""

    __slots__ = ("_steps", "ended", "i_call", "n_rows")

    def __init__(self, i_call: int, steps: list[Step]) -> None:
        """Of a call that is placed: its steps so far, to which others will be added. What they name is not changed."""
        self.i_call, self._steps = i_call, steps
        self.n_rows = len(steps[0][2].seq_ids)  # pairs of a row and a sequence of it
        self.ended: tuple[int, int, int, int] | None = None  # at_ns, ns, trace_ns, trace_before_ns of `Ended`

    def lines(self) -> str:
        """Pure. Of all its events, in order; it has succeeded."""
        i_call = self.i_call
        (began, checked, rows), (settling, settled, paid), (placing, placed, plan), *ubatches = self._steps
        copies, n_shifted = paid
        offsets, span = rows.shared_offsets, rows.span
        values: list[Any] = [
            *(i_call, began, checked - began, "null" if rows.token is None else rows.token.tolist(), rows.pos.tolist()),
            *(rows.seq_ids.tolist(), list(range(len(rows.output) + 1)) if offsets is None else offsets.tolist()),
            *(list(rows.output.tobytes()), "null" if span is None else span.tolist()),
            *(i_call, settling, settled - settling, [list(pair) for pair in copies], n_shifted),
            *(i_call, placing, placed - placing),
        ]
        for u, slot in zip(plan.ubatches, plan.slots, strict=True):
            values += u.n_seqs, u.n_seq_tokens, quoted(u.reason), *_columns(u.rows, slot.kv or NO_CELLS)
        for i, step in enumerate(ubatches):
            apply_ns, plan_ns, miss, *others = laps(step)
            values += i_call, i, step[0], apply_ns, plan_ns, quoted(miss), *others
        assert self.ended is not None
        return _call_template(len(ubatches)) % (*values, i_call, *self.ended)


def _columns(rows: Rows, slot: Slot) -> tuple[list[int], ...]:
    indexes = list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows.tolist()
    return indexes, slot.streams.tolist(), slot.row_stream.tolist(), slot.cells.tolist()


@lru_cache
def _call_template(n_ubatches: int) -> str:
    """Pure. All lines of a call that succeeded."""
    placed = ("%s",) * 3
    ended = *("%s",) * 4, '"ok"', '"done"', '""', '""', "%s"
    lines = (
        *(template(Checked), template(Settled)),
        template(Placed) % (*placed, f"[{','.join([template(PlacedUbatch)] * n_ubatches)}]"),
        *[template(Computed)] * n_ubatches,
        template(Ended) % ended,
    )
    return "\n".join(lines)
