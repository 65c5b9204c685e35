"""The reference backend: NumPy float32, one small function per op, matrix products left to BLAS."""

from polyseq.backends.reference.kv import ReferenceKv
from polyseq.backends.reference.loaded import ReferenceBackend, ReferenceModel
from polyseq.backends.reference.plan import ReferencePlan

__all__ = ["ReferenceBackend", "ReferenceKv", "ReferenceModel", "ReferencePlan"]
