"""What the cache tensors are owed before the next decode, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from polyseq.memory.cache_part import PartName

StreamCopy = tuple[PartName, int, int]  # the part, source stream, destination stream


@dataclass(frozen=True, slots=True)
class Pending:
    """Copies first, in order, then the rotation of K."""

    copies: tuple[StreamCopy, ...] = ()
    shifts: Mapping[PartName, NDArray[np.int32]] = field(default_factory=dict)  # [n_stream, n_cells] of every KV part

    def __bool__(self) -> bool:
        return bool(self.copies) or bool(self.shifts)
