"""A trace sorted into calls: what each was given, how it was cut, what each ubatch took, how it ended.

Enters: the events of a trace. Leaves: a `Timeline`, the ground of summary, page and export. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import BadColumn
from polyseq.trace import (
    Checked,
    Computed,
    Ended,
    Event,
    Opened,
    Operation,
    Placed,
    PlacedUbatch,
    Refused,
    Restored,
    Settled,
)


@dataclass(slots=True)
class Call:
    """One call of `decode`, as far as it came."""

    i_call: int
    checked: Checked | None = None
    settled: Settled | None = None
    placed: Placed | None = None
    refused: Refused | None = None
    computed: list[Computed] = field(default_factory=list)
    ended: Ended | None = None  # None: it was under way when the trace ended

    @property
    def ok(self) -> bool:
        return self.ended is not None and self.ended.status == "ok"

    @property
    def end_ns(self) -> int:
        """When it ended; only for a call that did."""
        assert self.ended is not None
        return self.ended.at_ns + self.ended.ns

    @property
    def blocks(self) -> list[tuple[PlacedUbatch, Computed]]:
        """The ubatches that were computed, in order."""
        return [] if self.placed is None else list(zip(self.placed.ubatches, self.computed, strict=False))


@dataclass(frozen=True, slots=True)
class Between:
    """Time outside of calls: tokens are drawn, texts made, somebody waits. `i_call` follows; None: the trace ends."""

    at_ns: int
    ns: int
    i_call: int | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """All of a trace: the context, its calls, and the events in order."""

    opened: Opened
    calls: tuple[Call, ...]
    events: tuple[Event, ...]

    @property
    def start_ns(self) -> int:
        """When the first call or operation began."""
        return min((e.at_ns for e in self.events[1:]), default=self.opened.at_ns)

    @property
    def end_ns(self) -> int:
        """When the last call or operation ended."""
        ends = (e.at_ns if isinstance(e, Opened | Operation | Restored) else e.at_ns + e.ns for e in self.events)
        return max(ends)

    @property
    def between(self) -> tuple[Between, ...]:
        """What lies between the calls that ended, before the first and after the last. With them it is all the time."""
        calls = [call for call in self.calls if call.ended is not None]
        begins = [call.ended.at_ns for call in calls if call.ended is not None]
        ends = [call.end_ns for call in calls]
        return tuple(
            Between(at, until - at, i_call)
            for at, until, i_call in zip(
                [self.start_ns, *ends], [*begins, self.end_ns], [*(call.i_call for call in calls), None], strict=True
            )
            if until > at
        )

    def call(self, i_call: int) -> Call:
        """The call of that number. Raises `BadColumn`."""
        for call in self.calls:
            if call.i_call == i_call:
                return call
        known = f"{self.calls[0].i_call}..{self.calls[-1].i_call}" if self.calls else "none"
        raise BadColumn(f"call {i_call} is not in the trace (calls: {known})", value=i_call)


def timeline(events: Sequence[Event]) -> Timeline:
    """Pure. `events` as `read_trace` gives them, or as a sink got them."""
    if not events or not isinstance(events[0], Opened):
        raise BadColumn("a trace begins with the event that tells of its context")
    calls: dict[int, Call] = {}
    for event in events[1:]:
        if not isinstance(event, Opened | Operation | Restored):
            _put(calls.setdefault(event.i_call, Call(event.i_call)), event)
    return Timeline(events[0], tuple(calls.values()), tuple(events))


def _put(call: Call, event: Checked | Settled | Placed | Refused | Computed | Ended) -> None:
    """Changes the call by one event."""
    match event:
        case Checked():
            call.checked = event
        case Settled():
            call.settled = event
        case Placed():
            call.placed = event
        case Refused():
            call.refused = event
        case Computed():
            call.computed.append(event)
        case Ended():
            call.ended = event


# ---- rows ----------------------------------------------------------------------------------------------


def first_seq(rows: Checked) -> NDArray[np.int32]:
    """Pure. [n_tokens] the smallest sequence id of each row."""
    return rows.seq_ids[rows.seq_offsets[:-1]]


def decode_rows(rows: Checked) -> NDArray[np.bool_]:
    """Pure. [n_tokens] which rows continue an answer: the only row of their sequence, not its first, with an output.

    All others are prefill.
    """
    counts = np.bincount(rows.seq_ids)
    alone = np.diff(rows.seq_offsets) == 1
    decoding: NDArray[np.bool_] = alone & (counts[first_seq(rows)] == 1) & (rows.pos[0] > 0) & rows.output
    return decoding


def seqs_of(rows: Checked, which: NDArray[np.intp]) -> NDArray[np.int32]:
    """Pure. The distinct sequences of these rows, ascending."""
    return np.unique(pairs_of(rows, which)[1])


def pairs_of(rows: Checked, which: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
    """Pure. Every (index into `which`, sequence id) of these rows."""
    counts = np.diff(rows.seq_offsets)[which]
    owner = np.repeat(np.arange(len(which)), counts)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return owner, rows.seq_ids[np.repeat(rows.seq_offsets[which], counts) + within]


def all_blocks(calls: Sequence[Call]) -> list[tuple[Call, PlacedUbatch, Computed]]:
    """Pure. Every ubatch that was computed, of calls that succeeded."""
    return list(chain.from_iterable(((c, u, done) for u, done in c.blocks) for c in calls if c.ok))
