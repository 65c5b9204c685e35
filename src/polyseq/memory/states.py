"""Step 4, the ground of running states: what each sequence holds, and which state cells that takes. Metadata only.

A cell is never named here as written: who moves on gets other cells, so that going back is a matter of keeping the old
values.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from polyseq.batch.positions import SeqRanges
from polyseq.memory.running import Running

StatesMark = Mapping[int, Running]


class States:
    """`n_cells` state cells, and the sequences that hold some of them."""

    def __init__(self, *, n_seq_max: int, n_cells: int) -> None:
        self.n_seq_max = n_seq_max
        self.n_cells = n_cells
        self.running: dict[int, Running] = {}  # changed by `put` and `undo` only
        self.pos_min = np.full(n_seq_max, -1, np.int32)
        self.pos_max = np.full(n_seq_max, -1, np.int32)

    @property
    def ranges(self) -> SeqRanges:
        """From the oldest position that a sequence can go back to, to its last; read-only views that follow."""
        views = self.pos_min.view(), self.pos_max.view()
        for view in views:
            view.flags.writeable = False
        return SeqRanges(*views)

    def in_use(self) -> set[int]:
        """Pure. The cells that some sequence can go on from, or back to."""
        return {cell for running in self.running.values() for _, cell in running.snapshots}

    def put(self, seq_id: int, running: Running | None) -> None:
        """Changes what a sequence holds; None: nothing."""
        if running is None:
            self.running.pop(seq_id, None)
            self.pos_min[seq_id] = self.pos_max[seq_id] = -1
        else:
            self.running[seq_id] = running
            self.pos_min[seq_id], self.pos_max[seq_id] = running.pos_min, running.pos_max

    def mark(self) -> StatesMark:
        """Pure. What `undo` needs to come back here."""
        return dict(self.running)

    def undo(self, mark: StatesMark) -> None:
        """Changes everything back to the mark."""
        self.running = {}
        self.pos_min.fill(-1)
        self.pos_max.fill(-1)
        for seq_id, running in mark.items():
            self.put(seq_id, running)

    # ---- for tests -------------------------------------------------------------------------------------

    def columns(self) -> dict[str, bytes]:
        """Pure. All metadata as bytes."""
        return {"running": repr(sorted(self.running.items())).encode()} | {
            "pos_min": self.pos_min.tobytes(),
            "pos_max": self.pos_max.tobytes(),
        }

    def check(self, n_rs_seq: int) -> None:
        """Pure. Asserts the invariants; for tests."""
        for s in range(self.n_seq_max):
            running = self.running.get(s)
            expected = (-1, -1) if running is None else (running.pos_min, running.pos_max)
            assert (self.pos_min[s], self.pos_max[s]) == expected
            if running is not None:
                pos = [p for p, _ in running.snapshots]
                assert pos == sorted(set(pos), reverse=True) and len(pos) <= 1 + n_rs_seq
                assert running.start <= pos[-1] and pos[0] - pos[-1] <= n_rs_seq
        assert self.in_use() <= set(range(self.n_cells))
