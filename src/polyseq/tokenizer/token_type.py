"""What kinds of pieces there are, by their numbers in GGUF files."""

from __future__ import annotations

from enum import IntEnum


class TokenType(IntEnum):
    """One kind."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6
