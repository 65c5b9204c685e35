"""The reference backend: NumPy float32, one small function per op, matrix products left to BLAS."""

from polyseq.backends.reference.cache import ReferenceCache
from polyseq.backends.reference.loaded import ReferenceBackend, ReferenceModel
from polyseq.backends.reference.plan import ReferencePlan

__all__ = ["ReferenceBackend", "ReferenceCache", "ReferenceModel", "ReferencePlan"]
