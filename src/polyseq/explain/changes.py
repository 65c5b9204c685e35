"""What a refused caller can change, as values: programs apply them, people read their `str`.

Leaves `advise`. Each says exactly one thing to do, to the batch, to the memory or to the settings of a context.
"""

from __future__ import annotations

from dataclasses import dataclass

Setting = int | bool | str | tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class ChangeSetting:
    """Make the context (or the cut) with this keyword; None = leave it to its default."""

    name: str
    value: Setting

    def __str__(self) -> str:
        return f"leave {self.name} out" if self.value is None else f"set {self.name} to {self.value}"


@dataclass(frozen=True, slots=True)
class RemoveRange:
    """`memory.rm(seq_id, p0, p1)`; -1 = open."""

    seq_id: int
    p0: int
    p1: int
    n_freed: int | None = None  # cells that become free, where that was counted

    def __str__(self) -> str:
        if self.p1 >= 0:
            what = f"positions {self.p0}..{self.p1 - 1} of sequence {self.seq_id}"
        else:
            what = f"sequence {self.seq_id}" + (f" from position {self.p0} on" if self.p0 > 0 else "")
        freed = "" if self.n_freed is None else f", which frees {self.n_freed} cells"
        return f"remove {what} (rm({self.seq_id}, {self.p0}, {self.p1})){freed}"


@dataclass(frozen=True, slots=True)
class RemoveRanges:
    """Several removals, where no one of them is enough."""

    ranges: tuple[RemoveRange, ...]

    def __str__(self) -> str:
        shown = ", and ".join(map(str, self.ranges[:4]))
        return shown + (f", and {len(self.ranges) - 4} more" if len(self.ranges) > 4 else "")


@dataclass(frozen=True, slots=True)
class CallAgain:
    """Make the same call again."""

    def __str__(self) -> str:
        return "make the same call again"


@dataclass(frozen=True, slots=True)
class CopySequence:
    """`memory.cp(src, dst)`."""

    src: int
    dst: int

    def __str__(self) -> str:
        return f"copy sequence {self.src} to sequence {self.dst} (cp({self.src}, {self.dst}))"


@dataclass(frozen=True, slots=True)
class TruncateBatch:
    """Hand in the first rows now; the others stay with the caller."""

    n_rows: int

    def __str__(self) -> str:
        return f"hand in only the first {self.n_rows} rows now"


@dataclass(frozen=True, slots=True)
class TruncateSequences:
    """Hand in the first `n` rows of each sequence now, 0 = none of them."""

    n_rows: tuple[tuple[int, int], ...]  # (seq_id, n)

    def __str__(self) -> str:
        shown = ", ".join(f"{n} of sequence {s}" for s, n in self.n_rows[:8])
        return f"hand in only the first rows of each sequence now: {shown}" + (", ..." if len(self.n_rows) > 8 else "")


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """Hand in the same rows over several calls, in order."""

    n_rows: tuple[int, ...]

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.n_rows[:8])) + (", ..." if len(self.n_rows) > 8 else "")
        return f"split it into {len(self.n_rows)} calls of {shown} rows"


@dataclass(frozen=True, slots=True)
class DropRows:
    """Leave rows out."""

    rows: tuple[int, ...]

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.rows[:8])) + (f", ... {self.rows[-1]}" if len(self.rows) > 8 else "")
        return f"leave out row {shown}"


@dataclass(frozen=True, slots=True)
class ContinueFrom:
    """From this row on, the rows of its sequence count on from `pos`; None = positions left out, so after memory."""

    row: int
    pos: int | None

    def __str__(self) -> str:
        where = "give no positions" if self.pos is None else f"count on from position {self.pos}"
        return f"{where} from row {self.row} on"


@dataclass(frozen=True, slots=True)
class SortRows:
    """Put the rows of a sequence into the order of their positions."""

    seq_id: int

    def __str__(self) -> str:
        return f"sort the rows of sequence {self.seq_id} by position"


@dataclass(frozen=True, slots=True)
class SetSequence:
    """Put a row into a sequence."""

    row: int
    seq_id: int

    def __str__(self) -> str:
        return f"put row {self.row} into a sequence, {self.seq_id} for example"


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """Set a row's output flag before decoding."""

    row: int

    def __str__(self) -> str:
        return f"ask for the output of row {self.row} when it is added (output=True)"


Change = (
    ChangeSetting
    | RemoveRange
    | RemoveRanges
    | CallAgain
    | CopySequence
    | TruncateBatch
    | TruncateSequences
    | SplitBatch
    | DropRows
    | ContinueFrom
    | SortRows
    | SetSequence
    | RequestOutput
)
