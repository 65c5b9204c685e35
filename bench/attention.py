"""How fast attention reads K and V on this machine, alone, against plain reading of as many bytes.

    python bench/attention.py [--kinds bf16,int8] [--isas avx512,avx2] [--n-seqs 32] [--n-ctx 500] [--repeats 20]

One thread, a layer of 9 query heads on 3 KV heads of 64 dims, the best of many interleaved runs. Cases: decoding one
token per sequence with a stream each; the same in one unified cache that the sequences filled in turn; the same with a
prefix of half the context shared; and one prompt of 256 rows. GB/s counts the blocks that were visited, once per tile.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from polyseq.backends.cpu.attention.words import A, kernel_names, scratch_of
from polyseq.backends.cpu.compiler.compile import function
from polyseq.backends.cpu.compiler.features import Features, features
from polyseq.backends.cpu.kv.layout import KvType
from polyseq.backends.cpu.kv.part import KvPart
from polyseq.backends.cpu.tiles.tiles import Tiles
from polyseq.backends.cpu.words.aligned import address, zeros
from polyseq.backends.cpu.words.records import RECORD_WORDS, STEP_WORDS, S
from polyseq.backends.cpu.words.tile_words import BLOCK, U
from polyseq.graph import CachePart, KvLayer
from polyseq.memory.view import KvView

N_HEAD, N_HEAD_KV, HEAD = 9, 3, 64
_UNIT = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)


@dataclass(frozen=True, slots=True)
class Case:
    """Something to time."""

    label: str
    run: Callable[[], object]
    plan: Callable[[], object]
    n_bytes: int  # of K and V that a run reads
    keeps: tuple[object, ...]  # what lies behind the addresses in `run`


def in_streams(n_seqs: int, n_ctx: int) -> tuple[int, list[KvView]]:
    """A stream per sequence, all but the last token, then that one."""

    def view(first: int, stop: int) -> KvView:
        n = stop - first
        rows = np.repeat(np.arange(n_seqs), n)
        pos = np.tile(np.arange(first, stop, dtype=np.int32), n_seqs)
        cell_pos = np.tile(np.arange(stop, dtype=np.int32), (n_seqs, 1))
        return KvView(stop, np.arange(n_seqs, dtype=np.int32), rows, pos, pos, cell_pos, None, None)

    return n_seqs, [view(0, n_ctx - 1), view(n_ctx - 1, n_ctx)]


def in_turn(n_seqs: int, n_ctx: int, n_shared: int = 0) -> tuple[int, list[KvView]]:
    """One cache: a shared prefix, then position after position for all sequences."""
    shared = np.arange(n_shared)
    pos = np.concatenate((shared, np.repeat(np.arange(n_shared, n_ctx), n_seqs))).astype(np.int32)
    owner = np.concatenate((np.full(n_shared, -1), np.tile(np.arange(n_seqs), n_ctx - n_shared)))
    members = (owner == np.arange(n_seqs)[:, None]) | (owner < 0)

    def view(first: int, stop: int) -> KvView:
        rows = np.arange(first, stop)
        line = np.maximum(owner[first:stop], 0)
        nothing = np.zeros(len(rows), np.intp)
        one = np.zeros(1, np.int32)
        return KvView(
            stop, one, nothing, rows.astype(np.int32), pos[first:stop], pos[None, :stop], members[:, :stop], line
        )

    edges = [0, *([n_shared] if n_shared else []), *range(n_shared + n_seqs, len(pos) + 1, n_seqs)]
    return 1, [view(a, b) for a, b in pairwise(edges)]


def prompt(n_rows: int) -> tuple[int, list[KvView]]:
    """One sequence, all rows at once."""
    return in_turn(1, n_rows, n_rows)


def case(label: str, n_stream: int, views: list[KvView], kind: KvType, using: Features) -> Case:
    """The last view's rows over cells that the others filled."""
    n_cells = views[-1].n_kv
    part = KvPart(CachePart("kv", n_stream, n_cells, {0: KvLayer(N_HEAD_KV, HEAD, HEAD)}), kind, using)
    tiles = Tiles(part)
    for view in views:
        tiles.place_rows(view)
    part.pool[:] = 0x3C if kind == "int8" else np.resize(np.array([0x12, 0x3C], np.uint8), part.pool.shape)
    view, head = views[-1], part.layout.heads[0]
    n, scratch = len(view.pos), scratch_of(head, N_HEAD)
    q = np.random.default_rng(0).normal(0, 1, (n, N_HEAD * HEAD)).astype(np.float32)
    out, room = np.empty((n, N_HEAD * HEAD), np.float32), zeros((scratch.n_bytes,), np.uint8)
    record, step = np.zeros(RECORD_WORDS, np.int64), np.zeros(STEP_WORDS, np.int64)
    words = {
        **{word: function(name, using) for word, name in kernel_names(kind).items()},
        **dict(zip((A.PART, A.Q, A.Q_STRIDE), (S.KV, address(q), 4 * q.shape[1]), strict=True)),
        **dict(zip((A.OUT, A.OUT_STRIDE, A.RECORDS), (address(out), 4 * out.shape[1], 0), strict=True)),
        **dict(
            zip((A.N_GROUP, A.N_HEAD_KV, A.HEAD_K, A.HEAD_V), (N_HEAD // N_HEAD_KV, N_HEAD_KV, HEAD, HEAD), strict=True)
        ),
        **dict(zip((A.K_OFFSET, A.V_OFFSET), (part.layout.k_offset[0], part.layout.v_offset[0]), strict=True)),
        **dict(
            zip(
                (A.K_BYTES, A.V_BYTES, A.BUNDLE_BYTES),
                (head.k_bytes, head.v_bytes, part.layout.bundle_bytes),
                strict=True,
            )
        ),
        A.SCALE: int(np.float32(0.18).view(np.int32)),
    }
    for word, value in words.items():
        record[word] = value
    tiles.list_tiles(view)
    for word, value in tiles.step_words(partial_floats=0, n_head_kv=N_HEAD_KV).items():
        step[S.KV + word] = value
    unit = _UNIT(function(f"attention.tile_rows.{kind}", using))
    n_units = tiles.n_tiles * N_HEAD_KV
    n_bytes = int(tiles.runs[:, U.COUNT].sum()) * head.n_bytes
    again = Tiles(KvPart(part.part, kind, using))
    for earlier in views:
        again.place_rows(earlier)
    return Case(
        label,
        lambda: unit(address(record), address(step), 0, n_units, address(room)),
        lambda: again.plan(view),
        n_bytes,
        (part, tiles, q, out, room, record, step),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="bf16,int8")
    parser.add_argument("--isas", default=features().isa.value)
    parser.add_argument("--n-seqs", type=int, default=32)
    parser.add_argument("--n-ctx", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    shapes = {
        "streams": in_streams(args.n_seqs, args.n_ctx),
        "unified, in turn": in_turn(args.n_seqs, args.n_ctx),
        "half shared": in_turn(args.n_seqs, args.n_ctx, args.n_ctx // 2 // BLOCK * BLOCK),
        "prompt of 256": prompt(256),
    }
    cases = [
        case(f"{isa:12} {kind:5} {label:17}", *shape, kind, features(isa))
        for isa in args.isas.split(",")
        for kind in args.kinds.split(",")
        for label, shape in shapes.items()
    ]
    memory = np.ones(1 << 27, np.uint8).view(np.int64)
    best: dict[str, float] = {}

    def timed(label: str, run: Callable[[], object]) -> None:
        start = time.perf_counter()
        run()
        best[label] = min(best.get(label, 1e9), time.perf_counter() - start)

    for _ in range(args.repeats):
        timed("reading", memory.sum)
        for c in cases:
            timed(c.label, c.run)
            timed(c.label + "plan", c.plan)
    reading = memory.nbytes / best["reading"] / 1e9
    print(f"plain reading: {reading:.1f} GB/s")
    for c in cases:
        rate = c.n_bytes / best[c.label] / 1e9
        print(
            f"{c.label} {best[c.label] * 1e3:7.2f} ms  {rate:5.1f} GB/s  {rate / reading:4.0%} of reading"
            f"  planning {best[c.label + 'plan'] * 1e6:5.0f} us"
        )


if __name__ == "__main__":
    main()
