"""What ids stand for, found out when first asked for: a text uses few of a vocabulary's pieces.

Enters: how to make the bytes of one id. Leaves: a mapping from ids to bytes.
"""

from __future__ import annotations

from collections.abc import Callable


class PieceBytes(dict[int, bytes]):
    """Bytes by id, of the ids asked for so far; `[id]` makes what is missing. Several threads may read it."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, token: int) -> bytes:
        self[token] = made = self._make(token)
        return made
