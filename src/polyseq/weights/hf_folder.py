"""A model as a Hugging Face folder: `config.json`, safetensors, `tokenizer.json`.

Enters: a folder. Leaves: what `GgufFile` gives for a file: metadata under GGUF's keys, tensors under GGUF's names. It
satisfies `Weights`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import InvalidModelFile
from polyseq.weights.hf_config import folder_metadata
from polyseq.weights.hf_names import bert_names
from polyseq.weights.safetensors_file import SafetensorsFile
from polyseq.weights.tensor import TensorInfo, dequantised

MAX_LAYERS = 1 << 12


@dataclass(frozen=True, slots=True, eq=False)
class HfFolder:
    """An open folder."""

    path: Path
    metadata: Mapping[str, object]
    tensors: Mapping[str, TensorInfo]  # by GGUF name
    file: SafetensorsFile = field(repr=False)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Pure. Reads the folder's JSON files and the header of its `model.safetensors`.

        Raises InvalidModelFile for what is missing or broken, UnsupportedModel for a model that is no `bert`.
        """
        folder = Path(path)
        metadata = folder_metadata(folder)
        n_layer = metadata["bert.block_count"]
        if type(n_layer) is not int or not 1 <= n_layer <= MAX_LAYERS:
            raise InvalidModelFile(f"{folder}: config.json says num_hidden_layers {n_layer!r}, 1 to {MAX_LAYERS}")
        place = folder / "model.safetensors"
        if not place.is_file():
            raise InvalidModelFile(f"{folder}: holds no model.safetensors")
        file = SafetensorsFile.open(place)
        names = bert_names(file.tensors, n_layer)
        tensors = {name: replace(file.tensors[stored], name=name) for name, stored in names.items()}
        return cls(folder, MappingProxyType(metadata), MappingProxyType(tensors), file)

    def names(self) -> tuple[str, ...]:
        """Pure. All tensor names, in file order."""
        return tuple(self.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def info(self, name: str) -> TensorInfo:
        """Pure. Shape, type and size of one tensor. Raises InvalidModelFile for a missing one."""
        if name not in self.tensors:
            raise InvalidModelFile(f"{self.path}: holds no tensor {name!r}")
        return self.tensors[name]

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Pure. The mapped bytes of one tensor, read-only: [n_rows, bytes per row] u8."""
        return self.file.raw(self.info(name))

    def f32(self, name: str) -> NDArray[np.float32]:
        """Pure. One tensor as float32 of `info(name).shape`; F32 tensors are read-only views of the file."""
        return dequantised(self.info(name), self.raw(name))
