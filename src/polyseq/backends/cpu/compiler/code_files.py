"""Object code on disk: a folder of files, each whole or not there.

Enters: names and code. Leaves: code of an earlier process. A folder that cannot be written, or that others could
write to, is replaced by one in the temporary directory: code from there is run, so it must be the user's own.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.weights.cache import cache_dir

_DIGEST_BYTES = 32


def code_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Changes the disk: the folder for object code, made where it is missing.

    `kernels` in the cache directory (`POLYSEQ_CACHE` moves it), else a folder of the user's own among temporary files.
    """
    own = f"polyseq-{os.getuid()}" if hasattr(os, "getuid") else "polyseq"
    for folder in (cache_dir(environ) / "kernels", Path(tempfile.gettempdir()) / own / "kernels"):
        if _is_ours(folder):
            return folder
    return Path(tempfile.mkdtemp(prefix="polyseq-"))


def _is_ours(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(facts.st_mode) or not os.access(folder, os.W_OK):
        return False
    return not hasattr(os, "getuid") or (facts.st_uid == os.getuid() and not facts.st_mode & 0o022)


class CodeFiles:
    """Files of a folder: digest of the rest (32 bytes), symbol, a newline, object code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> ObjectCode | None:
        """Pure. The code, None where there is no such file or it is damaged."""
        try:
            data = (self.folder / name).read_bytes()
        except OSError:
            return None
        digest, rest = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if hashlib.sha256(rest).digest() != digest:
            return None
        symbol, _, code = rest.partition(b"\n")
        return ObjectCode(symbol.decode(), code)

    def write(self, name: str, code: ObjectCode) -> None:
        """Changes the disk; where it is full or has gone, nothing is kept and nothing is lost."""
        rest = code.symbol.encode() + b"\n" + code.data
        try:
            handle, path = tempfile.mkstemp(dir=self.folder)
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(rest).digest() + rest)
            os.replace(path, self.folder / name)
        except OSError:
            return
