"""Which instructions this process may use.

Enters: what is known of the host, or a name (argument or `POLYSEQ_ISA`) that is forced. Leaves: `Features`, by which
kernels are chosen. Nothing here needs LLVM.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib import import_module

from polyseq.backends.cpu.compiler.cpuinfo import cpuinfo
from polyseq.errors import CapabilityError

ISA_VARIABLE = "POLYSEQ_ISA"


class InstructionSet(StrEnum):
    """The families that kernels are written for, fastest first."""

    AVX512_VNNI = "avx512-vnni"
    AVX512 = "avx512"  # F, BW, VL and DQ, without VNNI
    AVX2 = "avx2"  # with FMA and F16C
    GENERIC = "generic"  # plain vectors: whatever LLVM makes of them
    EMULATED = "emulated"  # tests only: AVX512_VNNI with each instruction's meaning spelt out in plain vectors


@dataclass(frozen=True, slots=True)
class Features:
    """What kernels may be made of."""

    isa: InstructionSet
    bf16: bool = False  # AVX512_BF16: dot products of bf16 pairs
    avx_vnni: bool = False  # the 256-bit u8 x s8 dot product without AVX512


_AVX512 = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq"})
_AVX2 = frozenset({"avx2", "fma", "f16c"})
# What each family needs of the host; EMULATED needs nothing.
_NEEDS: Mapping[InstructionSet, frozenset[str]] = {
    InstructionSet.AVX512_VNNI: _AVX512 | _AVX2 | {"avx512vnni"},
    InstructionSet.AVX512: _AVX512 | _AVX2,
    InstructionSet.AVX2: _AVX2,
    InstructionSet.GENERIC: frozenset(),
}


def features(forced: str | None = None) -> Features:
    """Pure. What to use here: the best the host has, or the set named by `forced`, else by `POLYSEQ_ISA`.

    Raises CapabilityError for a name that is not known and for a set that the host cannot execute.
    """
    here = host()
    name = forced or os.environ.get(ISA_VARIABLE)
    return of_host(here) if not name else _forced(here, name)


def of_host(here: frozenset[str]) -> Features:
    """Pure. The best that a host with these LLVM features can execute."""
    isa = next(isa for isa, needs in _NEEDS.items() if needs <= here)
    return Features(isa, bf16=isa == InstructionSet.AVX512_VNNI and "avx512bf16" in here, avx_vnni="avxvnni" in here)


@cache
def host() -> frozenset[str]:
    """Pure. The features that this CPU has, under LLVM's names; none where that is not known."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    flags = cpuinfo().get("flags")
    return frozenset(flags.replace("_", "").split()) if flags else _host_by_llvm()


def _host_by_llvm() -> frozenset[str]:
    llvm = import_module("llvmlite.binding")  # only here: it takes a while, and memory
    try:
        return frozenset(name for name, on in llvm.get_host_cpu_features().items() if on)
    except RuntimeError:
        return frozenset()


def _forced(here: frozenset[str], name: str) -> Features:
    if name not in list(InstructionSet):
        raise CapabilityError(f"instruction set {name!r} is not known; known: {', '.join(InstructionSet)}")
    isa = InstructionSet(name)
    missing = _NEEDS.get(isa, frozenset()) - here
    if missing:
        raise CapabilityError(f"instruction set {name!r} needs {', '.join(sorted(missing))}, which this CPU lacks")
    best = of_host(here)
    return best if isa == best.isa else replace(best, isa=isa, bf16=False)
