"""Object code on disk: folders of files, each whole or not there.

Enters: names and code. Leaves: code of an earlier process. Code is run, so it is read only from what none but the
user and the system's own can write to. Where the cache directory cannot be written (an image that is run read-only, or
by another user than its maker) what it holds is used, and what it lacks is kept among temporary files, or nowhere.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.errors import FetchError
from polyseq.weights.cache import cache_dir

_DIGEST_BYTES = 32


def code_dirs(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Changes the disk: the folders for object code, the last of which is written to; made where they are missing.

    `kernels` in the cache directory (`POLYSEQ_CACHE` moves it), and where that cannot be written a folder of the user's
    own among temporary files. None where neither can be had: then each process compiles for itself.
    """
    found: list[Path] = []
    for folder in _folders(environ):
        with suppress(OSError):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if _is_safe(folder):
            found.append(folder)
            if os.access(folder, os.W_OK):
                break
    return tuple(found)


def _folders(environ: Mapping[str, str]) -> Iterator[Path]:
    with suppress(FetchError):
        yield cache_dir(environ) / "kernels"
    own = f"polyseq-{os.getuid()}" if hasattr(os, "getuid") else "polyseq"
    with suppress(OSError):
        yield Path(tempfile.gettempdir()) / own / "kernels"


def _is_safe(folder: Path) -> bool:
    try:
        facts = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and _nobody_else_writes(facts)


def _nobody_else_writes(facts: os.stat_result) -> bool:
    return not hasattr(os, "getuid") or (facts.st_uid in (os.getuid(), 0) and not facts.st_mode & 0o022)


class CodeFiles:
    """Files of some folders: digest of the rest (32 bytes), symbol, a newline, object code."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders

    def read(self, name: str) -> ObjectCode | None:
        """Pure. The code, None where there is no such file that nobody else writes to, or it is damaged."""
        return next((code for folder in self.folders if (code := _read(folder / name)) is not None), None)

    def write(self, name: str, code: ObjectCode) -> None:
        """Changes the disk; where it is full or has gone, nothing is kept and nothing is lost."""
        rest = code.symbol.encode() + b"\n" + code.data
        for folder in self.folders[-1:]:
            with suppress(OSError):
                _write(folder, name, hashlib.sha256(rest).digest() + rest)


def _read(path: Path) -> ObjectCode | None:
    try:
        with open(path, "rb") as file:
            # Its folder may have been moved away, and another put in its place, since it was looked at.
            data = file.read() if _nobody_else_writes(os.fstat(file.fileno())) else b""
    except OSError:
        return None
    digest, rest = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(rest).digest() != digest:
        return None
    symbol, _, code = rest.partition(b"\n")
    return ObjectCode(symbol.decode(), code)


def _write(folder: Path, name: str, data: bytes) -> None:
    handle, path = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(path, 0o644)  # an image's user reads what its maker compiled
        os.replace(path, folder / name)
    except BaseException:  # an interrupt too
        Path(path).unlink(missing_ok=True)
        raise
