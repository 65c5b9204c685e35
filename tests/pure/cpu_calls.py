"""Calls compiled kernels of the cpu backend directly: what the executor does, for one record, from Python."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.compiler.compile import function
from polyseq.backends.cpu.compiler.features import Features, InstructionSet, features, host
from polyseq.backends.cpu.words.aligned import address, zeros
from polyseq.backends.cpu.words.records import RECORD_WORDS, STEP_WORDS, R, S

HERE = features()
# Sets that this CPU can execute, and the stand-in for the one it may not have.
RUNNABLE = [
    Features(isa)
    for isa, needs in (
        (InstructionSet.AVX512_VNNI, {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "f16c", "fma"}),
        (InstructionSet.AVX512, {"avx512f", "avx512bw", "avx512vl", "avx512dq", "f16c", "fma"}),
        (InstructionSet.AVX2, {"avx2", "fma", "f16c"}),
        (InstructionSet.GENERIC, set()),
        (InstructionSet.EMULATED, set()),
    )
    if needs <= host()
]


def call(name: str, *args: int, using: Features = HERE) -> None:
    """Runs the kernel of that name."""
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(args))
    kind(function(name, using))(*args)


def run_unit(
    name: str,
    words: Mapping[int, int],
    *,
    n_rows: int,
    per_unit: int,
    n_fixed: int = 1,
    step_words: Mapping[int, int] | None = None,
    chunk: int = 3,
    scratch_bytes: int = 1 << 14,
    using: Features = HERE,
) -> None:
    """Runs all units of one record over `n_rows` rows, `chunk` at a time, the last ones first."""
    record, step = np.zeros(RECORD_WORDS, np.int64), np.zeros(STEP_WORDS, np.int64)
    step[S.ONE], step[S.N_TOKENS] = 1, n_rows
    record[[R.COUNT_WORD, R.N_FIXED, R.PER_UNIT]] = S.N_TOKENS, n_fixed, per_unit
    for word, value in words.items():
        record[word] = value
    for word, value in (step_words or {}).items():
        step[word] = value
    scratch = zeros((scratch_bytes,), np.uint8)
    scratch[:] = 0xFF  # NaN as f32
    n_units = n_fixed * -(-n_rows // per_unit)
    for u0 in reversed(range(0, n_units, chunk)):
        call(name, address(record), address(step), u0, min(u0 + chunk, n_units), address(scratch), using=using)


def poisoned(*shape: int) -> NDArray[np.float32]:
    """Zeros' opposite: an aligned array of NaN, whose rows are filled up to a multiple of 12."""
    rows = -(-shape[0] // 12) * 12
    out = zeros((rows, *shape[1:]), np.float32)
    out[:] = np.nan
    return out
