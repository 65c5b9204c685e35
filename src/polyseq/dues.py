"""Before step 4: what sequence operations left to be done to the cache tensors, paid before the next decode.

Enters: a memory with copies and shifts pending. Leaves: cache tensors that match its metadata. What ends it early is
gone on with at the next call.
"""

from __future__ import annotations

from polyseq.backends import CacheTensors, Plan
from polyseq.graph import Inputs
from polyseq.memory import Memory, Pending


class Dues:
    """What the cache tensors of one memory are owed. `shift_plans`: one for each layer whose K is rotated."""

    def __init__(self, memory: Memory, cache: CacheTensors, shift_plans: tuple[Plan, ...]) -> None:
        self._memory = memory
        self._cache = cache
        self.shift_plans = shift_plans
        self._shift: Inputs | None = None  # K is owed this rotation,
        self._i_plan = 0  # from this plan on

    def settle(self) -> Pending:
        """Changes cache tensors and memory: nothing is owed. What was.

        May end anywhere and be called again: nothing is done twice.
        """
        self._rotate()
        pending = self._memory.pending()
        for part, src, dst in pending.copies:
            self._cache.copy_stream(part, src, dst)
            self._memory.copied()
        if pending.shifts:
            shifts = pending.shifts
            self._shift, self._i_plan = Inputs(shift=shifts.get("kv"), shift_swa=shifts.get("kv_swa")), 0
            self._memory.settle()
            self._rotate()
        return pending

    def _rotate(self) -> None:
        if self._shift is None:
            return
        while self._i_plan < len(self.shift_plans):
            self.shift_plans[self._i_plan].run(self._shift)
            self._i_plan += 1
        self._shift = None

    def fill_gaps(self) -> int:
        """Changes where cells lie: those between cells in use are filled. How many moved.

        What ends it early leaves a part of it done, and all sequences sound.
        """
        self.settle()
        n_moved = 0
        for move in self._memory.compaction():
            rows = self._cache.read(move.part, move.stream, move.src)
            self._cache.write(move.part, move.stream, move.dst, rows)
            self._memory.moved(move)
            n_moved += len(move.src)
        return n_moved
