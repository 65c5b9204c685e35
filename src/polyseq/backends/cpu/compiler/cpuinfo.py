"""What the system says of this CPU, which costs less to ask than LLVM does."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path


@cache
def cpuinfo(path: Path = Path("/proc/cpuinfo")) -> Mapping[str, str]:
    """Pure. The fields of the first processor; none where the system has no such file."""
    try:
        first, _, _ = path.read_text().partition("\n\n")
    except OSError:
        return {}
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}


def cpu_name() -> str:
    """Pure. What tells this CPU from others, empty where the system does not say."""
    return " ".join(cpuinfo().get(field, "") for field in ("vendor_id", "cpu family", "model")).strip()
