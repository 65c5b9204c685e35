"""Step 4: room for all of it. `CheckedBatch` -> `KvCache.init_batch` -> `MemoryPlan` or `NoSlot`, then `apply`."""

from polyseq.memory.cell_map import CellMap, CellRun, StreamMap
from polyseq.memory.kv_cache import KvCache, Pending
from polyseq.memory.plan import MemoryPlan
from polyseq.memory.slot import Slot
from polyseq.memory.view import KvView

__all__ = ["CellMap", "CellRun", "KvCache", "KvView", "MemoryPlan", "Pending", "Slot", "StreamMap"]
