"""Who computes a graph. `reference` is NumPy in float32: small, plain, and what every other one is checked against."""

from polyseq.backends.backend import Backend, KvTensors, LoadedModel, Plan
from polyseq.backends.registry import KNOWN, backend

__all__ = ["KNOWN", "Backend", "KvTensors", "LoadedModel", "Plan", "backend"]
