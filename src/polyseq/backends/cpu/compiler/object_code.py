"""What a compiled kernel is: one C function in an object file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObjectCode:
    """One compiled function."""

    symbol: str
    data: bytes  # an object file, as the platform's linker would take it
