"""Object code becomes functions of this process, without LLVM: its library takes 46 MB and a tenth of a second.

Enters: an ELF object file for x86-64 as LLVM writes it for the large code model, in which every address is a whole
64-bit number (relocation R_X86_64_64 of the System V ABI, AMD64 supplement). Leaves: the address of its function. What
it calls is looked for in the process. Sections of code and constants lie together in pages that can be run and no
longer written.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.compiler.object_code import ObjectCode

_SECTION = np.dtype(
    [(name, "<u4") for name in ("name", "type")]
    + [(name, "<u8") for name in ("flags", "addr", "offset", "size")]
    + [(name, "<u4") for name in ("link", "info")]
    + [(name, "<u8") for name in ("align", "entry")]
)
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_RELOCATION = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_BITS, _SYMBOLS, _RELOCATIONS = 1, 2, 4  # types of sections
_TAKES_MEMORY = 2  # a flag of sections
_WHOLE_ADDRESS = 1  # R_X86_64_64
_UNDEFINED = 0  # the section of a symbol that is defined elsewhere


class ElfLoader:
    """Keeps what it has loaded for as long as it lives."""

    def __init__(self) -> None:
        self._process = ctypes.CDLL(None, use_errno=True)
        self._images: list[mmap.mmap] = []

    def load(self, code: ObjectCode) -> int:
        """Changes the process: the address of the code's function.

        Raises ValueError for what is no such object file, OSError where the system lets no memory be run.
        """
        file = _File(code.data)
        image = mmap.mmap(-1, max(file.n_bytes, 1))
        base = ctypes.addressof(ctypes.c_char.from_buffer(image))
        for i, at in file.places.items():
            image[at : at + len(file.section(i))] = file.section(i)
        for section, relocation, symbol in file.relocations():
            if relocation["type"] != _WHOLE_ADDRESS:
                raise ValueError(f"object code of {code.symbol} has a relocation of type {relocation['type']}")
            target = self._address(file, symbol, base) + int(relocation["addend"])
            struct.pack_into("<Q", image, file.places[section] + int(relocation["offset"]), target % (1 << 64))
        if self._process.mprotect(ctypes.c_void_p(base), len(image), mmap.PROT_READ | mmap.PROT_EXEC):
            raise OSError(ctypes.get_errno(), "the system lets no memory be run, so kernels cannot be loaded")
        self._images.append(image)
        return self._address(file, file.symbol(code.symbol), base)

    def _address(self, file: _File, symbol: Any, base: int) -> int:
        if symbol["section"] == _UNDEFINED:
            found = getattr(self._process, file.name(symbol), None)
            if found is None:
                raise ValueError(f"object code calls {file.name(symbol)}, which this process does not have")
            return ctypes.cast(found, ctypes.c_void_p).value or 0
        return base + file.places[int(symbol["section"])] + int(symbol["value"])


class _File:
    """An object file's sections that take memory, one behind the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        if data[:4] != b"\x7fELF":
            raise ValueError("object code is no ELF file")
        (start,), (n,) = struct.unpack_from("<Q", data, 0x28), struct.unpack_from("<H", data, 0x3C)
        self._sections: NDArray[np.void] = np.frombuffer(data, _SECTION, n, start)
        self._symbols = self._table(np.flatnonzero(self._sections["type"] == _SYMBOLS)[0], _SYMBOL)
        self.places: dict[int, int] = {}  # by section: its offset
        self.n_bytes = 0
        for i, section in enumerate(self._sections):
            if section["type"] == _BITS and section["flags"] & _TAKES_MEMORY:
                align = max(1, int(section["align"]))
                self.places[i] = -(-self.n_bytes // align) * align
                self.n_bytes = self.places[i] + int(section["size"])

    def section(self, i: int) -> bytes:
        """Pure. The bytes of a section."""
        start = int(self._sections[i]["offset"])
        return self._data[start : start + int(self._sections[i]["size"])]

    def relocations(self) -> list[tuple[int, Any, Any]]:
        """Pure. (section, relocation, symbol) of all sections that take memory."""
        tables = [
            i for i, s in enumerate(self._sections) if s["type"] == _RELOCATIONS and int(s["info"]) in self.places
        ]
        return [
            (int(self._sections[i]["info"]), relocation, self._symbols[relocation["symbol"]])
            for i in tables
            for relocation in self._table(i, _RELOCATION)
        ]

    def symbol(self, name: str) -> Any:
        """Pure. The symbol of that name. Raises ValueError."""
        for symbol in self._symbols:
            if self.name(symbol) == name:
                return symbol
        raise ValueError(f"object code without its function {name}")

    def name(self, symbol: Any) -> str:
        """Pure. A symbol's name."""
        names = self._sections[self._sections["type"] == _SYMBOLS][0]["link"]
        start = int(self._sections[names]["offset"]) + int(symbol["name"])
        return self._data[start : self._data.index(0, start)].decode()

    def _table(self, i: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        return np.frombuffer(self.section(i), dtype)
