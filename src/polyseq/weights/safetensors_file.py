"""Tensors of a safetensors file, mapped read-only.

Enters: a path. Leaves: for each tensor its shape, type and bytes in the file. The `safetensors` package reads and
checks the header; the bytes are taken from a map of the file, so that types NumPy lacks (bf16) need no copy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from polyseq.errors import InvalidModelFile
from polyseq.weights.tensor import TensorInfo

_TYPES: Mapping[str, GGMLQuantizationType] = MappingProxyType(
    {
        "F32": GGMLQuantizationType.F32,
        "F16": GGMLQuantizationType.F16,
        "BF16": GGMLQuantizationType.BF16,
        "F64": GGMLQuantizationType.F64,
        "I64": GGMLQuantizationType.I64,
        "I32": GGMLQuantizationType.I32,
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class SafetensorsFile:
    """An open file. The map lives as long as any array taken from it."""

    path: Path
    tensors: Mapping[str, TensorInfo]  # by the names in the file; scalars have shape (1,)
    data: NDArray[np.uint8] = field(repr=False)  # [n_bytes of the file] u8, mapped read-only

    @classmethod
    def open(cls, path: Path) -> Self:
        """Pure. Map the file and read its header. Raises InvalidModelFile for anything that is no sound file."""
        try:
            with safe_open(path, framework="numpy") as file:
                found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                shapes = {name: (a.get_dtype(), tuple(a.get_shape())) for name, a in found.items()}
            data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        except (OSError, ValueError, SafetensorError) as error:
            raise InvalidModelFile(f"{path}: cannot be read as safetensors: {error}") from error
        n_header = int.from_bytes(data[:8].tobytes(), "little")
        header = json.loads(data[8 : 8 + n_header].tobytes())
        tensors = {}
        for name, (dtype, shape) in shapes.items():
            if dtype not in _TYPES:
                raise InvalidModelFile(f"{path}: tensor {name!r} is {dtype}; supported: {', '.join(_TYPES)}")
            begin, end = header[name]["data_offsets"]
            shape = shape or (1,)
            if math.prod(shape) == 0:
                raise InvalidModelFile(f"{path}: tensor {name!r} has shape {list(shape)}, which holds nothing")
            tensors[name] = TensorInfo(name, shape, _TYPES[dtype], 8 + n_header + begin, end - begin)
        return cls(path, MappingProxyType(tensors), data)

    def raw(self, info: TensorInfo) -> NDArray[np.uint8]:
        """Pure. The mapped bytes of one tensor, read-only: [n_rows, bytes per row] u8."""
        return self.data[info.offset : info.offset + info.n_bytes].reshape(info.n_rows, -1)
