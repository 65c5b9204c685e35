"""GGUF files of Hugging Face repositories.

Enters: `org/repo` or `org/repo:file.gguf`. Leaves: the path of the file in the hub's own cache (`HF_HOME` moves
it, `HF_ENDPOINT` names another hub), fetched through `huggingface_hub`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import huggingface_hub

from polyseq.errors import FetchError, UnknownModel

_HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[\w.-]+)(?::(?P<file>[^:]+))?")


@dataclass(frozen=True, slots=True)
class HubId:
    """A repository and, where it holds several, the file wanted from it."""

    repo: str
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Pure. `org/repo[:file.gguf]`, or None for anything else; `folder/model.gguf` is a path, not a repository."""
        match = _HUB_ID.fullmatch(text)
        if match is None or match["repo"].endswith(".gguf"):
            return None
        return cls(match["repo"], match["file"])


def fetch_from_hub(
    wanted: HubId, *, local_only: bool = False, endpoint: str | None = None, cache: Path | None = None
) -> Path:
    """Changes the hub's cache. The path of the one GGUF file `wanted` means.

    `local_only` looks into the cache alone. Raises UnknownModel when the repository does not hold exactly one fitting
    file (naming those it holds), FetchError when the hub or the cache cannot give it.
    """
    try:
        file = wanted.file or _only_gguf(wanted.repo, local_only=local_only, endpoint=endpoint, cache=cache)
        return Path(
            huggingface_hub.hf_hub_download(
                wanted.repo, file, endpoint=endpoint, cache_dir=cache, local_files_only=local_only
            )
        )
    except UnknownModel:
        raise
    # Which HTTP library's errors come out of huggingface_hub depends on its version.
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        where = "the hub's cache" if local_only else "the hub"
        raise FetchError(
            f"there is no file {wanted.repo!r} here, and as a hub id it could not be had from {where}: {reason[0]}"
        ) from error


def _only_gguf(repo: str, *, local_only: bool, endpoint: str | None, cache: Path | None) -> str:
    if local_only:
        folder = Path(
            huggingface_hub.snapshot_download(
                repo, allow_patterns="*.gguf", cache_dir=cache, endpoint=endpoint, local_files_only=True
            )
        )
        files = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    else:
        files = huggingface_hub.HfApi(endpoint=endpoint).list_repo_files(repo)
    held = sorted(file for file in files if file.lower().endswith(".gguf"))
    if not held:
        raise UnknownModel(f"{repo!r} holds no .gguf file")
    if len(held) > 1:
        raise UnknownModel(f"{repo!r} holds {len(held)} .gguf files; say which, as in {repo}:{held[0]}: {held}")
    return held[0]
