"""Which backends there are, by name. One is imported when it is asked for: what is not used need not be there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType

from polyseq.backends.backend import Backend
from polyseq.errors import CapabilityError

BACKEND_VARIABLE = "POLYSEQ_BACKEND"
Progress = Callable[[str], None]  # told what takes a while, the first time


def _reference(progress: Progress | None) -> Backend:
    made: Backend = import_module("polyseq.backends.reference.loaded").ReferenceBackend()
    return made


def _cpu(progress: Progress | None) -> Backend:
    if not _cpu_is_possible():
        raise CapabilityError(
            "backend 'cpu' needs llvmlite and a little-endian 64-bit machine; 'reference' is always there",
            remedy={"backend": "auto"},
        )
    made: Backend = import_module("polyseq.backends.cpu.backend").CpuBackend(progress=progress)
    return made


def _cpu_is_possible() -> bool:
    return find_spec("llvmlite") is not None and sys.byteorder == "little" and sys.maxsize > 1 << 32


KNOWN: Mapping[str, Callable[[Progress | None], Backend]] = MappingProxyType({"cpu": _cpu, "reference": _reference})


def _auto() -> str:
    """What "auto" means here: what the variable says, else the fastest there is."""
    return os.environ.get(BACKEND_VARIABLE) or ("cpu" if _cpu_is_possible() else "reference")


def backend(name: str, *, progress: Progress | None = None) -> Backend:
    """Pure. The backend of that name; "auto": what `POLYSEQ_BACKEND` says, else the fastest that this machine can run.

    Raises CapabilityError naming what is known, or what the one asked for lacks here.
    """
    known = _auto() if name == "auto" else name
    if known not in KNOWN:
        raise CapabilityError(
            f"backend {name!r} is not there; known: auto, {', '.join(KNOWN)}", remedy={"backend": "auto"}
        )
    return KNOWN[known](progress)
