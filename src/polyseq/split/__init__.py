"""Step 3: cutting. `CheckedBatch` -> `Splitter.split(strategy)` -> `Ubatch` after `Ubatch`."""

from polyseq.split.equal import Equal
from polyseq.split.packed import Packed
from polyseq.split.seq import Seq
from polyseq.split.simple import Simple
from polyseq.split.splitter import Splitter, Strategy, split_all
from polyseq.split.ubatch import Ubatch
from polyseq.split.whole import Whole

__all__ = ["Equal", "Packed", "Seq", "Simple", "Splitter", "Strategy", "Ubatch", "Whole", "split_all"]
