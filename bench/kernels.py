"""How fast the linear kernels are on this machine, alone, and how fast they could be.

    python bench/kernels.py [--kinds q4_1,q8_0] [--isas avx512,avx2] [--repeats 40]

Per kind of panel and instruction set, on one thread, the best of many interleaved runs of the unit "linear.units.rows":

- GMAC/s with 120, 8 and 4 rows times a matrix that fits the second-level cache, and what share that is of the dot
  product instructions alone, run from the first-level cache;
- GB/s of weights with one row times a matrix that lies in memory, and what share that is of plain reading.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.compiler.assemble import object_code
from polyseq.backends.cpu.compiler.compile import function
from polyseq.backends.cpu.compiler.features import Features, features
from polyseq.backends.cpu.ir.emit import I32, Body, Emit, I32x16, Value, vec
from polyseq.backends.cpu.isa.sets import isa_of
from polyseq.backends.cpu.linear.words import L, gemm_name, pair_gemm_name, x_words
from polyseq.backends.cpu.panels.panel_kind import KINDS, N_COLUMNS, STEPS, FloatKind
from polyseq.backends.cpu.panels.panels import Panels
from polyseq.backends.cpu.rows import activation
from polyseq.backends.cpu.words.aligned import address, zeros
from polyseq.backends.cpu.words.records import RECORD_WORDS, STEP_WORDS, R, S

N_IN, SMALL_BYTES, LARGE_BYTES = 1536, 400_000, 96_000_000
ROWS = (120, 8, 4)
Run = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Case:
    """Something to time."""

    label: str
    run: Run
    work: float  # per run: multiplications, or bytes
    keeps: tuple[object, ...]  # what lies behind the addresses in `run`


def panels_of(name: str, n_bytes: int) -> Panels:
    """Panels of about that many bytes: random codes, scales of one bit pattern."""
    kind = KINDS.get(name) or FloatKind(name)
    panel_bytes = kind.panel_bytes(N_IN) if isinstance(kind, FloatKind) else kind.panel_bytes(N_IN // 32)
    n_panels = n_bytes // panel_bytes // 2 * 2
    data = zeros((n_panels, panel_bytes), np.uint8)
    data[:] = np.random.default_rng(0).integers(0x20, 0x30, panel_bytes, np.uint8)  # no NaN, no denormal
    return Panels(kind, n_panels * N_COLUMNS, N_IN, data)


def linear_case(panels: Panels, n_rows: int, using: Features) -> Case:
    """All rows times all panels, as one unit."""
    x = np.random.default_rng(1).normal(0, 1, (-(-n_rows // 12) * 12, N_IN)).astype(np.float32)
    read: NDArray[np.generic] = activation.quantised(x) if panels.reads_records else x
    aligned = zeros(read.shape, read.dtype)
    aligned[:] = read
    out = zeros((len(x), panels.n_out), np.float32)
    record, step = np.zeros(RECORD_WORDS, np.int64), np.zeros(STEP_WORDS, np.int64)
    step[S.N_TOKENS] = n_rows
    block, stride, n_inner = x_words(panels)
    for word, value in {
        R.COUNT_WORD: S.N_TOKENS,
        R.N_FIXED: 1,
        R.PER_UNIT: len(x),
        L.GEMM: function(gemm_name(panels), using),
        L.PAIR_GEMM: function(pair_gemm_name(panels), using) if panels.reads_records else 0,
        L.X: address(aligned),
        L.X_BLOCK: block,
        L.X_STRIDE: stride,
        L.N_INNER: n_inner,
        L.PANELS: address(panels.data),
        L.PANEL_BYTES: panels.panel_bytes,
        L.N_PANELS: panels.n_panels,
        L.PANELS_PER_UNIT: panels.n_panels,
        L.OUT: address(out),
        L.OUT_STRIDE: out.strides[0],
        L.N_OUT: panels.n_out,
    }.items():
        record[word] = value
    unit = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(function("linear.units.rows", features()))
    args = (address(record), address(step), 0, 1, 0)
    work = panels.data.nbytes if n_rows == 1 else n_rows * panels.n_out * N_IN
    return Case(f"{n_rows}", lambda: unit(*args), work, (record, step, aligned, out, panels))


class Loaded:
    """Object code that this program made, in memory."""

    def __init__(self, body: Body, name: str, using: Features) -> None:
        code = object_code(body, 2, name, using)
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self._file = llvm.ObjectFileRef.from_data(code.data)
        self._engine.add_object_file(self._file)
        self._engine.finalize_object()
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
        self.call = kind(self._engine.get_function_address(code.symbol))


def peak_case(using: Features, bits: int) -> Case:
    """The dot product instructions alone: inputs in the first-level cache, a few sums at once, nothing unpacked."""
    isa, n_rounds, n_places = isa_of(using), 60_000, 8
    fold_every, n_sums = isa.fold_every(bits), isa.lanes // 2
    size = 4 * isa.lanes

    def body(e: Emit, n: Value, memory: Value) -> None:
        words = vec(I32, isa.lanes)
        weights = [isa.prepare(e, e.load(memory, words, size * i), bits) for i in range(2)]

        def round_(i: Value, totals: list[Value]) -> list[Value]:
            at = e.add(memory, e.mul(e.b.and_(i, e.i64(n_places - 1)), size))  # else the products leave the loop
            out = []
            for s, total in enumerate(totals):
                partial = None
                for step in range(STEPS):
                    inputs = e.load(at, words, size * (n_places * s + step))
                    partial = isa.add(e, partial, weights[step % 2], inputs)
                    if (step + 1) % fold_every == 0:
                        total, partial = isa.fold(e, total, partial), None
                out.append(total if partial is None else isa.fold(e, total, partial))
            return out

        for i, total in enumerate(e.loop(n, [e.const(words, 0)] * n_sums, round_)):
            e.store(total, memory, size * i)

    loaded = Loaded(body, f"peak_{using.isa.name}_{bits}", using)
    memory = zeros((8192,), np.uint8)
    where = address(memory)
    work = n_rounds * n_sums * STEPS * 4 * isa.lanes
    return Case("instructions", lambda: loaded.call(n_rounds, where), work, (loaded, memory))


def read_case() -> Case:
    """Reading memory and nothing else, four stretches side by side: a core gets more so than from one."""
    n_stretches, n_bytes = 4, LARGE_BYTES // 4
    memory = zeros((LARGE_BYTES,), np.uint8)
    memory[:] = 1

    def body(e: Emit, n: Value, at: Value) -> None:
        def lines(i: Value, sums: list[Value]) -> list[Value]:
            places = [e.add(at, e.add(e.mul(i, 64), n_bytes * j)) for j in range(n_stretches)]
            for place in places:
                e.prefetch(place, 1024)
            return [e.b.xor(s, e.load(place, I32x16)) for s, place in zip(sums, places, strict=True)]

        for i, total in enumerate(e.loop(n, [e.const(I32x16, 0)] * n_stretches, lines)):
            e.store(total, at, 64 * i)

    loaded, where = Loaded(body, "read", features()), address(memory)
    return Case("read", lambda: loaded.call(n_bytes // 64, where), LARGE_BYTES, (loaded, memory))


def best_rates(cases: list[Case], repeats: int) -> dict[str, float]:
    """Work per ns of each case, the best of `repeats` interleaved runs."""
    best = {case.label: 0.0 for case in cases}
    for _ in range(repeats):
        for case in cases:
            start = time.perf_counter_ns()
            case.run()
            best[case.label] = max(best[case.label], case.work / (time.perf_counter_ns() - start))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join([*KINDS, "f32", "f16", "bf16"]))
    parser.add_argument("--isas", default=features().isa.value)
    parser.add_argument("--repeats", type=int, default=40)
    args = parser.parse_args()
    read = read_case()
    print(f"{'kind':8} {'set':12}" + "".join(f"{n:>6} rows" for n in ROWS) + "  of peak   1 row, GB/s  of read")
    for isa in args.isas.split(","):
        using = features(isa)
        for name in args.kinds.split(","):
            small, large = panels_of(name, SMALL_BYTES), panels_of(name, LARGE_BYTES)
            cases = [*(linear_case(small, n, using) for n in ROWS), linear_case(large, 1, using), read]
            kind = KINDS.get(name)
            if kind is not None:
                cases.append(peak_case(using, kind.factor_bits))
            rates = best_rates(cases, args.repeats)
            share = f"{rates[str(ROWS[0])] / rates['instructions']:8.0%}" if kind is not None else " " * 8
            cells = "".join(f"{rates[str(n)]:11.1f}" for n in ROWS)
            print(f"{name:8} {isa:12}{cells} {share} {rates['1']:13.1f} {rates['1'] / rates['read']:8.0%}", flush=True)


if __name__ == "__main__":
    main()
