"""Steps 1 and 2: what the caller hands in, and its check. `Batch` -> `check` -> `CheckedBatch`."""

from polyseq.batch.batch import Batch
from polyseq.batch.check import Limits, check
from polyseq.batch.checked import CheckedBatch
from polyseq.batch.flat import FlatBatch
from polyseq.batch.positions import SeqRanges

__all__ = ["Batch", "CheckedBatch", "FlatBatch", "Limits", "SeqRanges", "check"]
