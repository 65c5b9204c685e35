"""Which instruction set the linear kernels are written for, for given features."""

from __future__ import annotations

from polyseq.backends.cpu.compiler.features import Features, InstructionSet
from polyseq.backends.cpu.isa.generic import Emulated, Generic
from polyseq.backends.cpu.isa.isa import Isa
from polyseq.backends.cpu.isa.maddubs import Avx2Vnni, Maddubs
from polyseq.backends.cpu.isa.vnni import Vnni


def isa_of(features: Features) -> Isa:
    """Pure. The set that these features name."""
    if features.isa == InstructionSet.AVX512_VNNI:
        return Vnni()
    if features.isa == InstructionSet.AVX512:
        return Maddubs(lanes=16, float_columns=32)
    if features.isa == InstructionSet.AVX2:
        return Avx2Vnni() if features.avx_vnni else Maddubs(lanes=8, float_columns=16)
    return Emulated() if features.isa == InstructionSet.EMULATED else Generic()
