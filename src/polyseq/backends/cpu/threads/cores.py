"""How many threads are worth having: physical cores that this process may use.

Enters: affinity, the cores' topology and the control group's quota, as Linux shows them; elsewhere a count. Leaves: a
number. Two hardware threads of one core share its vector units, so the second adds nothing here.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

_SYSTEM = Path("/")


def n_cores(root: Path = _SYSTEM) -> int:
    """Pure. Physical cores in this process's affinity, at most its quota; at least 1."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    return n_cores_of(cpus, root)


def n_cores_of(cpus: set[int], root: Path) -> int:
    """Pure. As `n_cores`, for these logical CPUs and the files under `root`."""
    cores = {_siblings(root, cpu) for cpu in cpus}
    return max(1, math.ceil(min(len(cores), _quota(root))))


def _siblings(root: Path, cpu: int) -> str:
    """Pure. The logical CPUs on this one's core, in the system's own writing; itself where nobody says."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):
        text = _text(topology / name)
        if text:
            return text
    return str(cpu)


def _quota(root: Path) -> float:
    """Pure. Cores' worth of time per period that the control groups grant, the least on the way up; else infinity."""
    least = math.inf
    for group in _groups(root):
        quota, _, period = _text(group / "cpu.max").partition(" ")  # version 2
        if not quota:
            quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            least = min(least, int(quota) / int(period))
    return least


def _groups(root: Path) -> list[Path]:
    """Pure. The folders of this process's control groups and of those above them."""
    found = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 1: some systems say "cpuacct,cpu" of what is mounted as "cpu,cpuacct"; "cpu" leads there on all.
        base = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        group = base.joinpath(*Path(path).parts[1:])
        found += [group, *(p for p in group.parents if p.is_relative_to(base))]
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
