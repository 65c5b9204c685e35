"""Step 4: room for all of it. `CheckedBatch` -> `Memory.init_batch` -> `MemoryPlan` or `NoSlot`, then `apply`.

`make_memory` chooses the kind from what a model's layers keep.
"""

from polyseq.memory.cache_layer import CacheLayer, KvLayer, RsLayer
from polyseq.memory.cache_part import CachePart, PartName
from polyseq.memory.cell_map import CellMap, CellRun, StreamMap
from polyseq.memory.drop import drop_middle
from polyseq.memory.fit import longest_start
from polyseq.memory.kind import Example
from polyseq.memory.kv_cache import KvCache
from polyseq.memory.memory import Memory
from polyseq.memory.pending import Pending
from polyseq.memory.place import place
from polyseq.memory.plan import MemoryPlan
from polyseq.memory.registry import cache_parts, examples, kind_of, make_memory
from polyseq.memory.reusable import Reusable
from polyseq.memory.rs_view import RsView
from polyseq.memory.seq_view import SeqView
from polyseq.memory.settings import MemorySettings
from polyseq.memory.slot import Slot
from polyseq.memory.trial import Refused, Trial, has_room, held_alone
from polyseq.memory.view import KvView
from polyseq.memory.views import Views

__all__ = [
    "CacheLayer",
    "CachePart",
    "CellMap",
    "CellRun",
    "Example",
    "KvCache",
    "KvLayer",
    "KvView",
    "Memory",
    "MemoryPlan",
    "MemorySettings",
    "PartName",
    "Pending",
    "Refused",
    "Reusable",
    "RsLayer",
    "RsView",
    "SeqView",
    "Slot",
    "StreamMap",
    "Trial",
    "Views",
    "cache_parts",
    "drop_middle",
    "examples",
    "has_room",
    "held_alone",
    "kind_of",
    "longest_start",
    "make_memory",
    "place",
]
