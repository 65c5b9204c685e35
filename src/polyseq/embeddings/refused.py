"""Texts that could not be computed, each by its index, with what the others gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import PolyseqError

_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Refused:
    """One text that was left out."""

    index: int  # in the caller's list
    reason: str


class TextsRefused(PolyseqError):
    """Some texts were refused. The others were computed all the same: `rows` has them, and NaN for the refused."""

    code = "texts_refused"

    def __init__(self, refused: Sequence[Refused], rows: NDArray[np.float32]) -> None:
        self.refused = tuple(refused)
        self.rows = rows
        shown = "; ".join(f"text {r.index}: {r.reason}" for r in self.refused[:_SHOWN])
        more = f"; and {len(self.refused) - _SHOWN} more" if len(self.refused) > _SHOWN else ""
        super().__init__(f"{len(self.refused)} of {len(rows)} texts refused: {shown}{more} (the others are in .rows)")
