"""The sequences of a context that no request runs in, and the shared prefix that some of them still hold.

Enters: sequences given back by requests that ended. Leaves: sequences for the next ones, with as much of the
prefix in memory as can be had without computing it: kept from the last request, or copied from a living one.
"""

from __future__ import annotations

from polyseq.context import Context
from polyseq.errors import SequenceError


class SequencePool:
    """Free sequences of `ctx`: those that are empty when the pool is made."""

    def __init__(self, ctx: Context, n_prefix: int) -> None:
        self._memory = ctx.memory
        self._unified = ctx.unified
        self._n_prefix = n_prefix
        # free sequence -> tokens of the prefix it still holds: none or all
        self._kept = {seq: 0 for seq in range(ctx.n_seq_max) if ctx.memory.pos_max(seq) < 0}
        if not self._kept:
            raise SequenceError(f"all {ctx.n_seq_max} sequences of the context are in use; one must be empty")

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def keeper(self) -> int | None:
        """A free sequence that holds the prefix."""
        return next((seq for seq, n_kept in self._kept.items() if n_kept), None)

    def take(self, *, shares: bool, holder: int | None) -> tuple[int, int]:
        """Changes memory: the lowest free sequence, and how many tokens of the prefix it holds.

        shares: whether the prefix is wanted at all; holder: a sequence in use that has it, if any.
        """
        source = self.keeper if holder is None else holder
        seq = min(self._kept)  # low ids stay dense: cuts over streams take neighbours together
        n_kept = self._kept.pop(seq)
        if not shares:
            if n_kept:
                self._memory.rm(seq, -1, -1)
            return seq, 0
        if n_kept or source is None or not self._can_go_on_from_prefix(source):
            return seq, n_kept
        if self._unified:
            self._memory.cp(source, seq, 0, self._n_prefix)
        else:  # between streams only whole sequences are copied
            self._memory.cp(source, seq, -1, -1)
            self._memory.rm(seq, self._n_prefix, -1)
        return seq, self._n_prefix

    def give_back(self, seq: int, *, keep_prefix: bool) -> None:
        """Changes memory: `seq` is free again, empty or holding the prefix for whoever comes next."""
        kept = self._n_prefix if keep_prefix and self._can_go_on_from_prefix(seq) else 0
        self._memory.rm(seq, kept or -1, -1)
        self._kept[seq] = kept

    def _can_go_on_from_prefix(self, seq: int) -> bool:
        """A running state or a window may have moved on too far."""
        return self._memory.reusable(seq, self._n_prefix).n == self._n_prefix

    def forget_prefix(self) -> bool:
        """Changes memory: free sequences hold nothing. Whether any did."""
        keepers = [seq for seq, n_kept in self._kept.items() if n_kept]
        for seq in keepers:
            self.give_back(seq, keep_prefix=False)
        return bool(keepers)
