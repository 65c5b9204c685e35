"""GGUF files: a checked header and the tensors' bytes, mapped read-only.

Enters: a path. Leaves: `GgufFile` with metadata and tensors, which satisfies `Weights`. Whatever the file
says is checked before it is believed, so a truncated or hostile file costs an InvalidModelFile and nothing
else. `gguf.GGUFReader` is not used: it loops on lengths it has not checked, and takes 6 s for the header of a
98 MB file that takes 0.1 s here.
"""

from __future__ import annotations

import itertools
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT
from numpy.typing import NDArray

from polyseq.errors import InvalidModelFile
from polyseq.weights.cursor import HeaderCursor
from polyseq.weights.tensor import TensorInfo, dequantised

MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MIN_FILE_BYTES = 24
_MIN_KEY_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8
_MAX_DIMS = 4
_TYPES = {qtype.value: qtype for qtype in GGML_QUANT_SIZES}
_MAX_ELEMENTS = (1 << 63) - 1


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """An open GGUF file. Satisfies `Weights`. The map lives as long as any array taken from it."""

    path: Path
    version: int  # 2 or 3
    alignment: int  # bytes; a power of two
    metadata: Mapping[str, object]  # int, float, bool, str, list of str, list of arrays, or array of numbers
    tensors: Mapping[str, TensorInfo]
    data: NDArray[np.uint8] = field(repr=False)  # [n_bytes of the file] u8, mapped read-only

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Pure. Map the file and read its header.

        Raises InvalidModelFile for anything that is no sound little-endian GGUF of version 2 or 3
        (format: the GGUF specification of the ggml project).
        """
        path = Path(path)
        mapped = _mapped(path)
        cursor = HeaderCursor(path, mapped)
        version, n_tensors, n_keys = _counts(cursor)
        metadata = _metadata(cursor, n_keys)
        alignment = _alignment(cursor, metadata)
        tensors = _tensors(cursor, n_tensors, alignment, len(mapped))
        data: NDArray[np.uint8] = np.ndarray(len(mapped), np.uint8, mapped)
        return cls(path, version, alignment, MappingProxyType(metadata), MappingProxyType(tensors), data)

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
        info = self.info(name)
        return self.data[info.offset : info.offset + info.n_bytes].reshape(info.n_rows, -1)

    def f32(self, name: str) -> NDArray[np.float32]:
        """Pure. One tensor as float32 of `info(name).shape`; F32 tensors are read-only views of the file.

        Raises UnsupportedModel when the stored type cannot be dequantised.
        """
        return dequantised(self.info(name), self.raw(name))


def _mapped(path: Path) -> mmap.mmap:
    try:
        if not path.is_file():
            raise InvalidModelFile(f"{path}: " + ("not a regular file" if path.exists() else "no such file"))
        n_bytes = path.stat().st_size
        if n_bytes < _MIN_FILE_BYTES:
            raise InvalidModelFile(f"{path}: {n_bytes} bytes are too few, a GGUF header takes {_MIN_FILE_BYTES}")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidModelFile):
            raise
        raise InvalidModelFile(f"{path!s}: cannot be read: {error}") from error


def _counts(cursor: HeaderCursor) -> tuple[int, int, int]:
    """Changes the cursor. Version, tensor count and key count, each possible in a file of this size."""
    magic = bytes(cursor.take(4, "the magic"))
    if magic != _MAGIC:
        cursor.refuse(f"starts with {magic!r}, not {_MAGIC!r}: no GGUF file", at=0)
    version = cursor.u32("the version")
    if version and not version & 0xFFFF:
        cursor.refuse(f"is big-endian (version reads as {version:#x}); convert it to little-endian", at=4)
    if version not in _VERSIONS:
        cursor.refuse(f"has GGUF version {version}, supported are {_VERSIONS}", at=4)
    n_tensors, n_keys = cursor.u64("the tensor count"), cursor.u64("the key count")
    for n, least, limit, what in (
        (n_keys, _MIN_KEY_BYTES, MAX_KEYS, "keys"),
        (n_tensors, _MIN_TENSOR_BYTES, MAX_TENSORS, "tensors"),
    ):
        if n > limit:
            cursor.refuse(f"claims {n} {what}, the limit is {limit}")
        cursor.need(n * least, f"a header of {n} {what}")
    return version, n_tensors, n_keys


def _metadata(cursor: HeaderCursor, n_keys: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for i in range(n_keys):
        start = cursor.at
        key = cursor.name(f"key {i} of {n_keys}")
        if key in metadata:
            cursor.refuse(f"has the key {key!r} twice", at=start)
        metadata[key] = cursor.value(cursor.kind(f"key {key!r}"), f"key {key!r}")
    return metadata


def _alignment(cursor: HeaderCursor, metadata: Mapping[str, object]) -> int:
    alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        cursor.refuse(f"general.alignment is {alignment!r}, it must be a power of two")
    return alignment


def _tensors(cursor: HeaderCursor, n_tensors: int, alignment: int, n_file: int) -> dict[str, TensorInfo]:
    """Changes the cursor. The tensors, each inside the file and none over another."""
    found: dict[str, TensorInfo] = {}
    for i in range(n_tensors):
        start = cursor.at
        info = _tensor(cursor, f"tensor {i} of {n_tensors}", alignment)
        if info.name in found:
            cursor.refuse(f"has the tensor {info.name!r} twice", at=start)
        found[info.name] = info
    data_start = -(-cursor.at // alignment) * alignment
    placed: dict[str, TensorInfo] = {}
    for info in found.values():
        begin = data_start + info.offset
        if begin + info.n_bytes > n_file:
            cursor.refuse(
                f"tensor {info.name!r} takes bytes {begin} to {begin + info.n_bytes}, "
                f"the file has {n_file}: truncated or lying"
            )
        placed[info.name] = TensorInfo(info.name, info.shape, info.qtype, begin, info.n_bytes)
    in_order = sorted(placed.values(), key=lambda info: info.offset)
    for left, right in itertools.pairwise(in_order):
        if left.offset + left.n_bytes > right.offset:
            cursor.refuse(f"tensors {left.name!r} and {right.name!r} overlap", at=right.offset)
    return placed


def _tensor(cursor: HeaderCursor, what: str, alignment: int) -> TensorInfo:
    """Changes the cursor. One tensor's header; `offset` still counts from the start of the data."""
    start = cursor.at
    name = cursor.name(f"the name of {what}")
    what = f"tensor {name!r}"
    n_dims = cursor.u32(f"the number of dims of {what}")
    if not 1 <= n_dims <= _MAX_DIMS:
        cursor.refuse(f"{what} has {n_dims} dims, allowed are 1 to {_MAX_DIMS}", at=start)
    dims = tuple(cursor.u64(f"the dims of {what}") for _ in range(n_dims))
    if 0 in dims or math.prod(dims) > _MAX_ELEMENTS:
        cursor.refuse(f"{what} has the dims {dims}; each must be at least 1, their product below 2^63", at=start)
    number = cursor.u32(f"the type of {what}")
    if number not in _TYPES:
        cursor.refuse(f"{what} has the unknown type {number}", at=start)
    qtype = _TYPES[number]
    block_size, type_size = GGML_QUANT_SIZES[qtype]
    if dims[0] % block_size:
        cursor.refuse(f"{what} has rows of {dims[0]}, no multiple of {qtype.name}'s block of {block_size}", at=start)
    offset = cursor.u64(f"the offset of {what}")
    if offset % alignment:
        cursor.refuse(f"{what} has the offset {offset}, no multiple of the alignment {alignment}", at=start)
    return TensorInfo(name, dims[::-1], qtype, offset, math.prod(dims) // block_size * type_size)
