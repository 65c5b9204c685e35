"""A model: what is in a file, read once and shared by any number of contexts.

Enters: a path, a known name or a hub id. Leaves: architecture, weights, tokenizer and chat template. Each backend
packs the weights at most once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Self

from polyseq.backends import Backend, LoadedModel
from polyseq.errors import InvalidModelFile
from polyseq.lazy import lazy
from polyseq.models import Architecture, architecture
from polyseq.weights import Weights, open_model
from polyseq.weights.pypi import Progress
from polyseq.weights.sources import resolve

if TYPE_CHECKING:  # imported when they are first asked for: contexts need no text
    from polyseq.tokenizer import Tokenizer
    from polyseq.tokenizer.template import ChatTemplate


class Model:
    """One model; `load` reads a file, `Model(...)` takes weights made in memory. Nothing in it changes for its users.

    metadata are GGUF's keys; tokenizer and chat template are read from it when first asked for.
    """

    def __init__(
        self, architecture: Architecture, weights: Weights, metadata: Mapping[str, object], *, path: Path | None = None
    ) -> None:
        self.architecture = architecture
        self.weights = weights
        self.metadata = metadata
        self.path = path
        self._loaded: dict[str, LoadedModel] = {}

    @classmethod
    def load(cls, path_or_name: str | Path, *, fetch: bool = True, progress: Progress | None = None) -> Self:
        """A GGUF file or a Hugging Face folder by path, a known name (`smollm2-135m`) or a hub id (`org/repo:f.gguf`).

        A name that is not in the cache is fetched, unless `fetch` is False; progress(what, done, total) in bytes.
        Raises `UnknownModel`, `FetchError`, `InvalidModelFile`, `UnsupportedModel`.
        """
        path = resolve(path_or_name, allow_fetch=fetch, progress=progress)
        file = open_model(path)
        name = file.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise InvalidModelFile(f"{path}: the file names no general.architecture")
        return cls(architecture(name).from_metadata(file.metadata, file), file, file.metadata, path=path)

    @property
    def name(self) -> str:
        """The name the file gives itself, else its architecture's."""
        return str(self.metadata.get("general.name", self.architecture.name))

    @property
    def n_params(self) -> int:
        """Numbers in all tensors."""
        return sum(self.weights.info(name).n_elements for name in self.weights.names())

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(self.weights.info(name).n_bytes for name in self.weights.names())

    @lazy
    def fingerprint(self) -> str:
        """Tells models apart: names, shapes and types of all tensors, and the values of the smallest."""
        infos = [self.weights.info(name) for name in sorted(self.weights.names())]
        digest = hashlib.sha256(self.architecture.name.encode())
        for info in infos:
            digest.update(f"{info.name} {tuple(info.shape)} {info.qtype.name}".encode())
        for info in sorted(infos, key=lambda info: info.n_bytes)[:4]:
            digest.update(self.weights.raw(info.name).tobytes())
        return digest.hexdigest()

    @lazy
    def tokenizer(self) -> Tokenizer:
        """Text to tokens and back. Raises `InvalidModelFile` (also where there is none), `UnsupportedModel`."""
        tokenizer: Tokenizer = import_module("polyseq.tokenizer").Tokenizer.from_metadata(self.metadata)
        return tokenizer

    @lazy
    def chat_template(self) -> ChatTemplate | None:
        """The template the file brings, None if it brings none. Raises `TemplateError`."""
        template: ChatTemplate | None = import_module("polyseq.tokenizer.template").ChatTemplate.from_metadata(
            self.metadata
        )
        return template

    def loaded(self, backend: Backend) -> LoadedModel:
        """The weights packed for a backend, once for all contexts."""
        if backend.name not in self._loaded:
            self._loaded[backend.name] = backend.load(self.weights)
        return self._loaded[backend.name]
