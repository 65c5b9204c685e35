"""The lock that a memory's users take turns by, which a fork's child finds free or is told why not.

Enters: threads that read or change what it guards. Leaves: one of them at a time. A child has none of its parent's
other threads: one that held the lock would never give it back, and what it was about stays half done.
"""

from __future__ import annotations

import os
import threading
import weakref

from polyseq.errors import ForkedMidway


class Lock:
    """Re-entrant; `with lock:` waits. Raises `ForkedMidway` where a thread held it that this process does not have."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_lost = False
        _ALL.add(self)

    def __enter__(self) -> None:
        if self._is_lost:
            raise ForkedMidway(
                "another thread was computing with this context when this process was forked, so what it holds here "
                "is half done; make a new context in the child"
            )
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _forked(self) -> None:
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._is_lost = True


_ALL: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forked() -> None:
    for lock in _ALL:
        lock._forked()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)
