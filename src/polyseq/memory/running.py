"""One sequence of a recurrent memory: where it began, its newest state and those it can go back to."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyseq.errors import SequenceError

Snapshot = tuple[int, int]  # the position of the last token taken in, the state cell


@dataclass(frozen=True, slots=True, order=True)
class Running:
    """Never changed: a sequence that moves on gets a new one, so that going back is a matter of keeping the old."""

    start: int  # the position of its first token
    snapshots: tuple[Snapshot, ...]  # newest first, by falling position

    @property
    def cell(self) -> int:
        """The cell of the newest state."""
        return self.snapshots[0][1]

    @property
    def pos_max(self) -> int:
        """The last position taken in."""
        return self.snapshots[0][0]

    @property
    def pos_min(self) -> int:
        """The oldest position it can go back to."""
        return self.snapshots[-1][0]

    def moved_on(self, newest: tuple[Snapshot, ...], n_back: int) -> Running:
        """Pure. With these states on top, and of the older ones those at most `n_back` positions before the last."""
        last = newest[0][0]
        older = tuple(s for s in self.snapshots if s[0] < newest[-1][0] and s[0] >= last - n_back)
        # Tokens may share a position; only the state after the last of them can be gone back to.
        distinct = tuple(s for i, s in enumerate(newest) if i == 0 or s[0] != newest[i - 1][0])
        return replace(self, snapshots=distinct + older)

    def touches(self, p0: int, p1: int) -> bool:
        """Pure. Whether positions `[p0, p1)` (-1 = open) hold any of it."""
        return max(p0, 0) <= self.pos_max and (p1 < 0 or p1 > self.start) and (p1 < 0 or p1 > max(p0, 0))

    def covered_by(self, p0: int, p1: int) -> bool:
        """Pure. Whether positions `[p0, p1)` hold all of it."""
        return p0 <= self.start and (p1 < 0 or p1 > self.pos_max)

    def without(self, seq_id: int, p0: int, p1: int) -> Running | None:
        """Pure. What is left without positions `[p0, p1)`. Raises `SequenceError` where that state was not kept."""
        if not self.touches(p0, p1):
            return self
        if self.covered_by(p0, p1):
            return None
        left = tuple(s for s in self.snapshots if s[0] < p0)
        if (0 <= p1 <= self.pos_max) or not left or left[0][0] != p0 - 1:
            back = sorted(pos + 1 for pos, _ in self.snapshots[1:])
            ways = f"what follows {' or '.join(str(p - 1) for p in back)}" if back else "nothing less (see n_rs_seq)"
            raise SequenceError(
                f"sequence {seq_id} is a running state, {self}: positions [{max(p0, 0)}, {p1}) cannot be taken out; "
                f"what can be removed is all of it or {ways}"
            )
        return replace(self, snapshots=left)

    def __str__(self) -> str:
        return f"p{self.start}..{self.pos_max}"
