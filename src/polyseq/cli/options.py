"""Options that several commands share, as the words they take."""

from __future__ import annotations

from enum import Enum
from typing import Literal

LIMITS = "Limits"


class Pooled(Enum):
    """How a text becomes one vector."""

    MEAN = "mean"
    CLS = "cls"
    LAST = "last"

    value: Literal["mean", "cls", "last"]


class TooLongOption(Enum):
    """What becomes of a text above the model's maximum."""

    TRUNCATE = "truncate"
    REFUSE = "refuse"

    value: Literal["truncate", "refuse"]
