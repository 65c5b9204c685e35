"""Where fetched models lie, and how they get there whole or not at all.

Enters: the environment (`POLYSEQ_CACHE`, `XDG_CACHE_HOME`). Leaves: the cache directory and staging directories
inside it. A model is put together in a staging directory and moved into place in one step, so that a reader never
sees half of one and two fetches of the same name cannot mix.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from polyseq.errors import FetchError

CACHE_VARIABLE = "POLYSEQ_CACHE"


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Pure. `$POLYSEQ_CACHE`, else `$XDG_CACHE_HOME/polyseq`, else `~/.cache/polyseq`.

    Raises FetchError where that is in a home directory and the user has none.
    """
    try:
        if environ.get(CACHE_VARIABLE):
            return Path(environ[CACHE_VARIABLE]).expanduser()
        base = environ.get("XDG_CACHE_HOME")
        return (Path(base) if base else Path.home() / ".cache") / "polyseq"
    except RuntimeError as error:  # containers run as users that no list of users names
        raise FetchError(
            f"there is no home directory for the cache; set {CACHE_VARIABLE} to a directory that can be written"
        ) from error


@contextmanager
def staging(cache: Path) -> Iterator[Path]:
    """Changes the disk: a fresh directory in `cache`, removed with all that is left in it at the end.

    Raises FetchError, naming the variable that moves the cache, when it cannot be written.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=".fetch-", dir=cache))
    except OSError as error:
        raise FetchError(
            f"the cache directory {cache} cannot be written ({error.strerror}); "
            f"set {CACHE_VARIABLE} to a directory that can"
        ) from error
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def move_into_place(made: Path, target: Path) -> None:
    """Changes the disk: `made` becomes `target` in one step. A file replaces what is there, a directory does not.

    A directory that is already there was made by another fetch of the same verified content: it stays.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(made, target)
    except OSError:
        if not (made.is_dir() and target.is_dir()):
            raise
