"""A call out of a trace file as a simulation, so that everything that draws plans draws it.

Enters: a file and the number of a call. Leaves: a `Simulation` on the memory of that moment.
"""

from __future__ import annotations

from pathlib import Path

from polyseq.errors import BadColumn
from polyseq.explain.replay import simulate_recorded
from polyseq.explain.simulation import Simulation
from polyseq.explain.timeline import timeline
from polyseq.trace import read_trace


def recorded_plan(path: Path, i_call: int | None, *, n_ubatch: int | None) -> Simulation:
    """Pure. Call `i_call` of a trace, None the first that has rows; n_ubatch None as it was.

    Raises OSError, `BadColumn`, and `NoSlot` where the call was refused and still has no room.
    """
    found = timeline(read_trace(path))
    if i_call is None:
        i_call = next((c.i_call for c in found.calls if c.checked is not None), None)
        if i_call is None:
            raise BadColumn(f"no call in {path} got as far as rows that could be planned")
    return simulate_recorded(found, i_call, n_ubatch=n_ubatch)
