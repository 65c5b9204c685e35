"""What has to be done to its end, whatever comes in between."""

from __future__ import annotations

from collections.abc import Callable


def surely(undo: Callable[[], None]) -> None:
    """Changes what `undo` changes, all of it: an interrupt is raised once that is done. `undo` may be called again."""
    try:
        undo()
    except KeyboardInterrupt:
        surely(undo)
        raise
