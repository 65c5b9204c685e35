"""A sink that can wait: it takes a call as a whole, and makes the lines of many calls together."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from polyseq.trace.events import Sink
from polyseq.trace.held_call import HeldCall


@runtime_checkable
class PatientSink(Sink, Protocol):
    """Asked before each call is computed. Of a call that it does not hold, or lets go, it gets every event."""

    def holds(self, call: HeldCall, now: int, /) -> bool:
        """Changes what is held: whether the call can be told when it is over, between what came before it and comes
        after. It is told once it has ended. `now`: by the clock of events."""

    def lets_go(self, call: HeldCall, /) -> None:
        """Changes what is held: a call that it holds is told otherwise."""
