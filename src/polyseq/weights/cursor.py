"""A bounds-checked reader over the bytes of a GGUF header: the security boundary of model files.

Enters: the mapped file, little-endian. Leaves: numbers, strings and arrays, each checked against the bytes
that are left and against fixed limits *before* anything is allocated or looped over. Everything else is
refused with InvalidModelFile that names file, what was being read, where and the limit.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NoReturn

import numpy as np
from gguf.constants import GGUFValueType
from numpy.typing import NDArray

from polyseq.errors import InvalidModelFile

MAX_HEADER_BYTES = 1 << 28  # a header holding 262k pieces and their merges takes about 20 MB
MAX_HEADER_ITEMS = 1 << 22  # strings and nested arrays of the whole header together
MAX_NAME_BYTES = (1 << 16) - 1  # of a key or a tensor name
MAX_ARRAY_DEPTH = 4

_U64 = struct.Struct("<Q")
_SCALARS: dict[GGUFValueType, struct.Struct] = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: struct.Struct("<I"),
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.UINT64: _U64,
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
}
_DTYPES: dict[GGUFValueType, np.dtype[np.generic]] = {
    kind: np.dtype(scalar.format) for kind, scalar in _SCALARS.items()
}


class HeaderCursor:
    """Reads one header from front to back; `at` is the next byte."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.at = 0
        self._data = data
        self._end = min(len(data), MAX_HEADER_BYTES)
        self._n_items = 0

    def refuse(self, message: str, *, at: int | None = None) -> NoReturn:
        """Raise InvalidModelFile with the file's name and the place in it."""
        raise InvalidModelFile(f"{self.path}: {message} (at byte {self.at if at is None else at})")

    def left(self) -> int:
        """Pure. Bytes left for the header."""
        return self._end - self.at

    def need(self, n_bytes: int, what: str) -> None:
        """Pure. Refuse when fewer than `n_bytes` are left."""
        if n_bytes > self.left():
            if self._end == len(self._data):
                self.refuse(f"{what} needs {n_bytes} bytes, the file has {self.left()} left: truncated or lying")
            self.refuse(f"{what} needs {n_bytes} bytes, past the limit of {MAX_HEADER_BYTES} for a header")

    def count_items(self, n: int, what: str) -> None:
        """Changes the tally of strings and arrays; refuses when the header holds more than the limit."""
        self._n_items += n
        if self._n_items > MAX_HEADER_ITEMS:
            self.refuse(f"{what} takes the header to {self._n_items} items, the limit is {MAX_HEADER_ITEMS}")

    def take(self, n_bytes: int, what: str) -> bytes:
        """Changes `at`. The next `n_bytes` bytes, copied."""
        self.need(n_bytes, what)
        start, self.at = self.at, self.at + n_bytes
        return self._data[start : self.at]

    def number(self, kind: GGUFValueType, what: str) -> int | float:
        """Changes `at`. One number of a numeric GGUF type."""
        scalar = _SCALARS[kind]
        value: int | float = scalar.unpack(self.take(scalar.size, what))[0]
        return value

    def u32(self, what: str) -> int:
        """Changes `at`. An unsigned 32-bit integer."""
        return int(self.number(GGUFValueType.UINT32, what))

    def u64(self, what: str) -> int:
        """Changes `at`. An unsigned 64-bit integer."""
        return int(self.number(GGUFValueType.UINT64, what))

    def name(self, what: str) -> str:
        """Changes `at`. A key or tensor name: 1 to MAX_NAME_BYTES bytes of UTF-8."""
        start = self.at
        text = self.strings(1, what, MAX_NAME_BYTES)[0]
        if not text:
            self.refuse(f"{what} is empty", at=start)
        return text

    def strings(self, n: int, what: str, max_bytes: int = MAX_HEADER_BYTES) -> list[str]:
        """Changes `at`. `n` length-prefixed UTF-8 strings of at most `max_bytes` each."""
        self.need(n * 8, f"{what} of {n} strings")
        self.count_items(n, what)
        # Locals, because a vocabulary has a quarter of a million entries.
        data, end, at, unpack = self._data, self._end, self.at, _U64.unpack_from
        out: list[str] = []
        for _ in range(n):
            if end - at < 8:
                self.at = at
                self.need(8, f"{what}, string {len(out)} of {n}")
            length = unpack(data, at)[0]
            stop = at + 8 + length
            if stop > end or length > max_bytes:
                self.at = at
                self._refuse_length(length, max_bytes, f"{what}, string {len(out)} of {n}")
            try:
                out.append(data[at + 8 : stop].decode())
            except UnicodeDecodeError as error:
                self.refuse(f"{what}, string {len(out)} of {n} is not UTF-8: {error.reason}", at=at)
            at = stop
        self.at = at
        return out

    def _refuse_length(self, length: int, max_bytes: int, what: str) -> NoReturn:
        if length > max_bytes:
            self.refuse(f"{what} has a length of {length}, the limit is {max_bytes}")
        self.refuse(f"{what} has a length of {length}, but {self.left() - 8} bytes are left: truncated or lying")

    def kind(self, what: str) -> GGUFValueType:
        """Changes `at`. A GGUF value type."""
        start = self.at
        number = self.u32(f"the type of {what}")
        try:
            return GGUFValueType(number)
        except ValueError:
            self.refuse(f"{what} has the unknown value type {number}", at=start)

    def value(self, kind: GGUFValueType, what: str, depth: int = 0) -> object:
        """Changes `at`. A number, bool, str, list of str, list of arrays, or a NumPy array of numbers."""
        if kind is GGUFValueType.STRING:
            return self.strings(1, what)[0]
        if kind is GGUFValueType.BOOL:
            return bool(self._bools(1, what)[0])
        if kind is GGUFValueType.ARRAY:
            return self._array(what, depth + 1)
        return self.number(kind, what)

    def _array(self, what: str, depth: int) -> object:
        if depth > MAX_ARRAY_DEPTH:
            self.refuse(f"{what} nests arrays deeper than {MAX_ARRAY_DEPTH}")
        kind = self.kind(f"the items of {what}")
        n = self.u64(f"the length of {what}")
        if kind is GGUFValueType.STRING:
            return self.strings(n, what)
        if kind is GGUFValueType.ARRAY:
            self.need(n * 12, f"{what} of {n} arrays")
            self.count_items(n, what)
            return [self._array(f"{what}[{i}]", depth + 1) for i in range(n)]
        if kind is GGUFValueType.BOOL:
            return self._bools(n, what)
        dtype = _DTYPES[kind]
        return np.frombuffer(self.take(n * dtype.itemsize, f"{what} of {n} {kind.name}"), dtype)

    def _bools(self, n: int, what: str) -> NDArray[np.bool_]:
        start = self.at
        stored = np.frombuffer(self.take(n, f"{what} of {n} BOOL"), np.uint8)
        if n and stored.max() > 1:
            self.refuse(f"{what} holds a bool of value {int(stored.max())}, neither 0 nor 1", at=start)
        bools = stored.astype(np.bool_)
        bools.setflags(write=False)
        return bools
