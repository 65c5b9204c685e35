"""polyseq: language models for many sequences at once, from a flat batch to answers in the caller's order."""

from polyseq.batch import Batch, FlatBatch

__version__ = "0.1.0"

__all__ = ["Batch", "FlatBatch", "__version__"]
