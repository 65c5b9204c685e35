"""What a panel is made of, before it is put together.

`at` = [n_blocks, 16 columns] stands last, so that operations run over long stretches of memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

U32 = NDArray[np.uint32]
Fields = Mapping[str, NDArray[Any]]  # a block's fields as stored: of several items [*at, n_items], a single one [*at]


@dataclass(frozen=True, slots=True)
class Parts:
    """Some panels in parts; a block is 1, 2 or 8 groups."""

    planes: tuple[U32, ...]  # [groups of a block, bits of the plane, *at] code words, plane after plane
    scale: NDArray[Any]  # [groups of a block, or 1 for all, n_scales, *at] f16, f32, u8 or i8
    minimum: NDArray[Any] | None = None  # [groups of a block, n_scales, *at] f16 or u8
    d: NDArray[Any] | None = None  # [*at] f16
    dmin: NDArray[Any] | None = None  # [*at] f16


def items_first(x: NDArray[Any]) -> NDArray[Any]:
    """Pure. As stored, [*at, n] -> [n, *at], a view."""
    return x.transpose(2, 0, 1)
