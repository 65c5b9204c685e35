"""What happened, step by step: events of a context for a sink, and a file that keeps them.

Enters: each step of `decode` and each operation on the memory. Leaves: small frozen events, in order. Stands below
`context`, which records, and knows nothing of models; `explain` reads what was kept.
"""

from polyseq.trace.events import (
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
    Sink,
)
from polyseq.trace.file import TraceFile, read_trace
from polyseq.trace.held_call import HeldCall
from polyseq.trace.patient import PatientSink
from polyseq.trace.recorder import Recorder
from polyseq.trace.traced_memory import TracedMemory

__all__ = [
    "Checked",
    "Computed",
    "Ended",
    "Event",
    "HeldCall",
    "Opened",
    "Operation",
    "PatientSink",
    "Placed",
    "PlacedUbatch",
    "Recorder",
    "Refused",
    "Restored",
    "Settled",
    "Sink",
    "TraceFile",
    "TracedMemory",
    "read_trace",
]
