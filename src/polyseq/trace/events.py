"""The events of a trace: one for each step of a call, one for each operation on the memory between calls.

Plain values, all times in ns of one monotonic clock: `at_ns` is when it began, `ns` how long it took. Columns are
those of the checked batch and the memory plan, which own them and never change. Named tuples, since they are made
between the steps of every call: a frozen dataclass takes several times as long.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import Holder

Status = Literal["ok", "error", "aborted"]


class Opened(NamedTuple):
    """A context was made: its sizes in effect. The first event of a trace."""

    at_ns: int
    unix_ns: int  # the same moment on the wall clock
    model: str
    backend: str
    n_ctx: int
    n_ctx_seq: int
    n_seq_max: int
    n_batch: int
    n_ubatch: int
    unified: bool
    n_pos: int
    memory: str  # the kind, by the name it is registered under
    parts: tuple[str, ...]  # the names of its parts
    packed: bool  # rows of streams were taken as they come, in no rectangles
    copy_replaces: bool  # what `cp` makes of what the copy held before: see `Memory.copy_replaces`

    @property
    def keeps_cells(self) -> bool:
        """There is a part that keeps every token, whose cells the trace tells."""
        return "kv" in self.parts


class Checked(NamedTuple):
    """Step 2: the rows of a call."""

    i_call: int
    at_ns: int
    ns: int
    token: NDArray[np.int32] | None  # [n_tokens] i32, None for embedding rows
    pos: NDArray[np.int32]  # [n_pos, n_tokens] i32
    seq_ids: NDArray[np.int32]  # [sum of set sizes] i32
    seq_offsets: NDArray[np.int64]  # [n_tokens + 1]
    output: NDArray[np.bool_]  # [n_tokens]
    span: NDArray[np.int32] | None = None  # [n_tokens] i32 the first row of each row's span, -1; None: no spans

    @property
    def n_tokens(self) -> int:
        return len(self.output)


class Settled(NamedTuple):
    """What the cache tensors were owed: copied streams, cells whose K was rotated."""

    i_call: int
    at_ns: int
    ns: int
    copies: tuple[tuple[int, int], ...]  # (source stream, destination stream)
    n_shifted: int


class PlacedUbatch(NamedTuple):
    """Steps 3 and 4 for one ubatch: its rows, why it ended, its cells."""

    n_seqs: int
    n_seq_tokens: int
    reason: str
    rows: NDArray[np.intp]  # [n_tokens] ubatch row -> batch row
    streams: NDArray[np.intp]  # [n_streams] of the part that keeps every token; none where there is no such part
    row_stream: NDArray[np.intp]  # [n_tokens] each row's index into streams
    cells: NDArray[np.intp]  # [n_tokens] in its own stream

    @property
    def n_tokens(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> str:
        """Sequence sets x rows of each; where these differ, rows in so many sets."""
        return f"{self.n_seqs}x{self.n_seq_tokens}" if self.n_seq_tokens else f"{self.n_tokens} in {self.n_seqs}"


class Placed(NamedTuple):
    """All of a call cut and placed."""

    i_call: int
    at_ns: int
    ns: int
    ubatches: tuple[PlacedUbatch, ...]


class Refused(NamedTuple):
    """No room for all of a call; the fields of `NoSlot`."""

    i_call: int
    at_ns: int
    ns: int
    code: str
    needed: int
    free: int
    largest_run: int
    n_cells: int
    stream: int
    i_ubatch: int
    holders: tuple[Holder, ...]


class Computed(NamedTuple):
    """Steps 5 and 6 for one ubatch: cells written and inputs made, plan found or built, computed, results kept."""

    i_call: int
    i_ubatch: int
    at_ns: int
    apply_ns: int
    plan_ns: int
    plan_miss: str  # why a plan had to be built; empty: one was there
    compute_ns: int
    collect_ns: int
    n_outputs: int

    @property
    def ns(self) -> int:
        return self.apply_ns + self.plan_ns + self.compute_ns + self.collect_ns


class Ended(NamedTuple):
    """The end of a call; of two for one call the later counts."""

    i_call: int
    at_ns: int  # when the call began
    ns: int  # all of it, with what is in no step
    trace_ns: int  # of that, spent on the trace: events made, and events of this and earlier calls written
    status: Status
    step: str  # the step it ended in
    code: str  # of the error, else empty
    message: str
    trace_before_ns: int = 0  # spent on the trace before it began, since the call before was about to end


class Operation(NamedTuple):
    """A sequence operation on the memory, or `settle` inside a call."""

    at_ns: int
    name: str  # rm | cp | keep | add | div | clear | settle | moved (of a stream, with 1: of the window part)
    args: tuple[int, ...]


class Restored(NamedTuple):
    """Saved sequences were put back: what the part that keeps every token got; nothing where there is none."""

    at_ns: int
    pos: NDArray[np.int32]  # [n_saved] each stored once, however many sequences share it
    entry: NDArray[np.int32]  # [n_pairs] which of them
    seq_ids: NDArray[np.int32]  # [n_pairs] is held by which sequence
    heads: NDArray[np.int32]  # [n_stream] where each stream's search would have started when it was saved
    placed: NDArray[np.intp]  # [n] which of them went
    streams: NDArray[np.intp]  # [n] where
    cells: NDArray[np.intp]  # [n]
    as_saved: bool  # all to where they were


Event = Restored | Opened | Checked | Settled | Placed | Refused | Computed | Ended | Operation


class Sink(Protocol):
    """Takes events in order, from whatever thread makes the call. What it raises fails the call."""

    def record(self, event: Event, /) -> None: ...
