"""Which backends there are, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from polyseq.backends.backend import Backend
from polyseq.backends.reference import ReferenceBackend
from polyseq.errors import CapabilityError

# Best first: "auto" takes the first.
KNOWN: Mapping[str, type[Backend]] = MappingProxyType({"reference": ReferenceBackend})


def backend(name: str) -> Backend:
    """Pure. The backend of that name, "auto" for the best there is. Raises CapabilityError naming what is known."""
    known = next(iter(KNOWN)) if name == "auto" else name
    if known not in KNOWN:
        raise CapabilityError(f"backend {name!r} is not there; known: auto, {', '.join(KNOWN)}")
    return KNOWN[known]()
