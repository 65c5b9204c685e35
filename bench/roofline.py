"""How far each step is from what the machine allows: bytes over measured bandwidth, MACs over measured peak.

    python bench/roofline.py [--model NAME] [--n-threads 2] [--kv-type bf16] [--cases decode_1,...] [--json]

A step's bytes and multiplications are read off the records that the pool is given: panels of weights, and the blocks of
K and V that tiles list. Records run one after another, so a step's floor is the sum over records of the longer of the
two: weights and cells once through the memory, or the products by the instruction that the kernel names, on all
threads, with nothing unpacked, scaled or waited for. Rows within a step are not counted: they stay in caches. Probes
and steps are timed in turns, the best of each; a fraction is floor / measured.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
from kernels import Case, Loaded, peak_case, read_case
from numpy.typing import NDArray

from polyseq import Context, Model
from polyseq.backends.cpu.attention.pair_formats import Int8, pair_format
from polyseq.backends.cpu.attention.words import A
from polyseq.backends.cpu.compiler.compile import function
from polyseq.backends.cpu.compiler.features import features
from polyseq.backends.cpu.ir.emit import Emit, Value
from polyseq.backends.cpu.isa.sets import isa_of
from polyseq.backends.cpu.kv.layout import KvType
from polyseq.backends.cpu.linear.words import F, G, L
from polyseq.backends.cpu.panels.panel_kind import GROUP, KINDS, N_COLUMNS
from polyseq.backends.cpu.threads.cores import n_cores
from polyseq.backends.cpu.threads.pool import Pool
from polyseq.backends.cpu.words.aligned import address, zeros
from polyseq.backends.cpu.words.records import K, R
from polyseq.backends.cpu.words.tile_words import BLOCK, RUN_WORDS, TILE_WORDS, T, U

PROMPT = 128
N_DECODE = 24  # steps of one round, in the middle of which the records are read
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Work:
    """What one record must move and multiply."""

    part: str  # "linear", "attention" or "head"
    peak: str  # the probe that its products are held against
    n_bytes: int
    n_macs: int


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; times in ms."""

    case: str
    mb: float
    gmacs: float
    floor_ms: float
    ms: float

    @property
    def fraction(self) -> float:
        """Of what the machine allows."""
        return self.floor_ms / self.ms


def pair_case(kind: KvType) -> Case:
    """Attention's products alone: pairs of one format, sums that fit the registers, weights from the first cache."""
    n_rounds, n_sums, n_steps = 20_000, 3 * isa_of(features()).lanes // 4, 8
    pairs = pair_format(kind, features())

    def body(e: Emit, n: Value, memory: Value) -> None:
        x = pairs.load(e, memory, 64)
        start = [e.const(pairs.sums, 0)] * n_sums if isinstance(pairs, Int8) else [e.const(pairs.sums, 0.0)] * n_sums

        def round_(_: Value, sums: list[Value]) -> list[Value]:
            for step in range(n_steps):
                sums = [
                    pairs.step(e, s, x, memory, 128 + pairs.weight_bytes * (step * n_sums + i))
                    for i, s in enumerate(sums)
                ]
            return sums

        for i, total in enumerate(e.loop(n, start, round_)):
            e.store(total, memory, 2048 + 64 * i)

    loaded, memory = Loaded(body, f"pairs_{kind}", features()), zeros((4096,), np.uint8)
    where = address(memory)
    return Case(kind, lambda: loaded.call(n_rounds, where), n_rounds * n_sums * n_steps * 2 * 16, (loaded, memory))


def on_threads(cases: list[Case]) -> float:
    """Work per ns of cases that run at the same time, a thread each."""
    gate = threading.Barrier(len(cases) + 1)

    def one(case: Case) -> None:
        gate.wait()
        case.run()
        gate.wait()

    threads = [threading.Thread(target=one, args=(case,)) for case in cases]
    for thread in threads:
        thread.start()
    gate.wait()
    start = time.perf_counter_ns()
    gate.wait()
    took = time.perf_counter_ns() - start
    for thread in threads:
        thread.join()
    return float(sum(case.work for case in cases) / took)


class Probes:
    """The best rate so far of each probe, on as many threads as the backend has."""

    def __init__(self, n_threads: int) -> None:
        self._n_threads = n_threads
        self._cases = {"read": [read_case() for _ in range(n_threads)]}
        self.best: dict[str, float] = {"read": 0.0}

    def need(self, name: str) -> None:
        """A probe by the name that `Work` has for it."""
        if name not in self._cases:
            kind = KINDS.get(name)
            make: Callable[[], Case] = (
                (lambda: peak_case(features(), kind.factor_bits))
                if kind is not None
                else (lambda: pair_case(_kv(name)))
            )
            self._cases[name] = [make() for _ in range(self._n_threads)]
            self.best[name] = 0.0

    def measure(self, repeats: int = 5) -> None:
        """Changes `best`."""
        for name, cases in self._cases.items():
            for _ in range(repeats):
                self.best[name] = max(self.best[name], on_threads(cases))


def _kv(name: str) -> KvType:
    return "int8" if name == "int8" else "bf16" if name == "bf16" else "f32"


class Reader:
    """Reads what records must do off their words."""

    def __init__(self, kv_type: KvType) -> None:
        use = features()
        self._units = {
            function(name, use): name
            for name in (
                "linear.units.rows",
                "linear.units.glu_rows",
                "linear.units.glu_records",
                "linear.float_linear.rows",
            )
        }
        self._units[function(f"attention.tile_rows.{kv_type}", use)] = kv_type
        self._gemms = {function(f"linear.gemm.{name}", use): name for name in KINDS}

    def read(self, records: I64, step: I64) -> list[Work]:
        """Every record that moves weights or cells."""
        out = []
        for record in records:
            name = self._units.get(int(record[R.UNIT]))
            if name is not None:
                out.append(self._work(name, record, step))
        return out

    def _work(self, name: str, r: I64, step: I64) -> Work:
        n_rows = int(step[r[R.COUNT_WORD]])
        if name == "linear.units.rows":
            return self._linear(r, n_rows, L.PANELS, int(r[L.PANEL_BYTES]))
        if name.startswith("linear.units.glu"):
            return self._linear(r, n_rows, G.PANELS, int(r[G.PANEL_BYTES] + r[G.UP_PANEL_BYTES]), n_matrices=2)
        if name == "linear.float_linear.rows":
            n = int(r[F.N_PANELS])
            return Work("linear", "f32", n * int(r[F.PANEL_BYTES]), n_rows * n * N_COLUMNS * int(r[F.N_IN]))
        return _attention(name, r, step)

    def _linear(self, r: I64, n_rows: int, panels: L | G, panel_bytes: int, n_matrices: int = 1) -> Work:
        words: type[L] | type[G] = type(panels)
        n = int(r[words.N_PANELS])
        n_in = int(r[words.N_INNER]) * GROUP
        return Work(
            "linear", self._gemms[int(r[words.GEMM])], n * panel_bytes, n_matrices * n_rows * n * N_COLUMNS * n_in
        )


def _attention(kind: str, r: I64, step: I64) -> Work:
    """Blocks that tiles list, each once, as caches keep what tiles share; a block's products are counted whole."""
    part = int(r[A.PART])
    tiles = _array(int(step[part + K.TILES]), int(step[part + K.N_TILES]), TILE_WORDS)
    n_runs = int((tiles[:, T.RUN] + tiles[:, T.N_RUNS]).max())
    runs = _array(int(step[part + K.RUNS]), n_runs, RUN_WORDS)
    rows_of_run = np.zeros(n_runs, np.int64)
    for tile in tiles:
        rows_of_run[tile[T.RUN] : tile[T.RUN] + tile[T.N_RUNS]] = tile[T.N_ROWS]
    rows_of_run[runs[:, U.WHO] >= 0] = 1
    n_heads, n_group = int(r[A.N_HEAD_KV]), int(r[A.N_GROUP])
    listed = _array(int(step[part + K.LISTED]), int((runs[:, U.FIRST] + runs[:, U.COUNT]).max()), 1)
    n_bytes = len(np.unique(listed)) * n_heads * int(r[A.K_BYTES] + r[A.V_BYTES])
    row_blocks = int((runs[:, U.COUNT] * rows_of_run).sum())
    return Work("attention", kind, n_bytes, row_blocks * BLOCK * n_heads * n_group * int(r[A.HEAD_K] + r[A.HEAD_V]))


def _array(at: int, n: int, width: int) -> NDArray[np.int32]:
    flat: NDArray[np.int32] = np.ctypeslib.as_array((ctypes.c_int32 * (n * width)).from_address(at))
    return flat.reshape(n, width)


class Steps:
    """One case on one context: its work, and its time."""

    def __init__(self, case: str, model: Model, n_threads: int, kv_type: KvType) -> None:
        self.case, (self.kind, _, count) = case, case.partition("_")
        self.n, self.work, self.best = int(count), list[Work](), float("inf")
        n_seqs, length = (self.n, PROMPT + N_DECODE + 1) if self.kind == "decode" else (1, self.n + 1)
        n_cells = n_seqs * length
        n_ubatch = min(512, n_cells)
        options: Mapping[str, Any] = {"backend": "cpu", "n_threads": n_threads, "kv_type": kv_type}
        self._ctx = Context(model, n_ctx=n_cells, n_seq_max=n_seqs, n_batch=n_cells, n_ubatch=n_ubatch, **options)
        self._rng, self._reader = np.random.default_rng(0), Reader(kv_type)

    def round(self) -> None:
        """Changes `best`, and the first time `work`."""
        if self.kind == "prefill":
            if not self.work:
                self._watched(lambda: self._prompts(1, self.n))
            for _ in range(3):
                self._timed(lambda: self._prompts(1, self.n))
            return
        self._prompts(self.n, PROMPT)
        for i in range(N_DECODE):
            if i == N_DECODE // 2 and not self.work:
                self._watched(self._step)
            else:
                self._timed(self._step)

    def _prompts(self, n_seqs: int, n: int) -> None:
        ctx = self._ctx
        ctx.memory.clear()
        batch = ctx.batch()
        for seq_id in range(n_seqs):
            batch.extend(self._rng.integers(0, 1000, n, np.int32), seq=seq_id, output=np.arange(n) == n - 1)
        self._tokens = ctx.decode(batch).argmax()

    def _step(self) -> None:
        batch = self._ctx.batch()
        batch.extend(self._tokens, seq=np.arange(self.n), output=True)
        self._tokens = self._ctx.decode(batch).argmax()

    def _timed(self, run: Callable[[], None]) -> None:
        start = time.perf_counter()
        run()
        self.best = min(self.best, time.perf_counter() - start)

    def _watched(self, run: Callable[[], None]) -> None:
        work, reader, plain = self.work, self._reader, Pool.run

        def watched(pool: Pool, records: I64, step: I64, *, scratch_bytes: int = 0) -> None:
            work.extend(reader.read(records, step))
            plain(pool, records, step, scratch_bytes=scratch_bytes)

        with patch.object(Pool, "run", watched):
            run()

    def row(self, best: Mapping[str, float]) -> Row:
        """The floor by these rates (bytes per ns, MACs per ns)."""
        floor = sum(max(w.n_bytes / best["read"], w.n_macs / best[w.peak]) for w in self.work)
        n_bytes, n_macs = (sum(getattr(w, name) for w in self.work) for name in ("n_bytes", "n_macs"))
        return Row(self.case, n_bytes / 1e6, n_macs / 1e9, floor / 1e6, self.best * 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--n-threads", type=int, default=n_cores())
    parser.add_argument("--kv-type", choices=("bf16", "int8", "f32"), default="bf16")
    parser.add_argument("--cases", default="decode_1,decode_8,decode_32,prefill_128,prefill_512")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    model = Model.load(args.model)
    cases = [Steps(case, model, args.n_threads, args.kv_type) for case in args.cases.split(",")]
    probes = Probes(args.n_threads)
    for _ in range(args.rounds):
        for case in cases:
            case.round()
            for name in {w.peak for w in case.work}:
                probes.need(name)
            probes.measure()
    rows = [case.row(probes.best) for case in cases]
    if args.json:
        found = {
            row.case: {**{n: getattr(row, n) for n in Row.__slots__[1:]}, "fraction": row.fraction} for row in rows
        }
        print(json.dumps({"n_threads": args.n_threads, "g_per_s": probes.best, "steps": found}))
        return
    print(
        f"{args.n_threads} threads, {features().isa.value}: read {probes.best['read']:.1f} GB/s; peaks, GMAC/s: ",
        end="",
    )
    print(", ".join(f"{name} {rate:.0f}" for name, rate in probes.best.items() if name != "read"))
    print(f"{'step':12}{'MB':>8}{'GMAC':>8}{'floor, ms':>11}{'measured':>10}{'of floor':>10}")
    for row in rows:
        print(f"{row.case:12}{row.mb:8.1f}{row.gmacs:8.2f}{row.floor_ms:11.2f}{row.ms:10.2f}{row.fraction:10.0%}")


if __name__ == "__main__":
    main()
