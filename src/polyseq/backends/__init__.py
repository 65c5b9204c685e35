"""Who computes a graph. `reference` is NumPy in float32: small, plain, and what every other one is checked against."""

from polyseq.backends.backend import Backend, CacheTensors, Kept, LoadedModel, Plan
from polyseq.backends.options import RunOptions
from polyseq.backends.registry import KNOWN, Progress, backend
from polyseq.backends.room import Room

__all__ = [
    "KNOWN",
    "Backend",
    "CacheTensors",
    "Kept",
    "LoadedModel",
    "Plan",
    "Progress",
    "Room",
    "RunOptions",
    "backend",
]
