"""polyseq: language models for many sequences at once, from a flat batch to answers in the caller's order."""

from polyseq.batch import Batch, FlatBatch
from polyseq.context import Context
from polyseq.errors import NoSlot, PolyseqError
from polyseq.model import Model
from polyseq.outputs import Outputs

__version__ = "0.1.0"

__all__ = ["Batch", "Context", "FlatBatch", "Model", "NoSlot", "Outputs", "PolyseqError", "__version__"]
