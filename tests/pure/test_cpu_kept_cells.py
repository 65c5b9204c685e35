"""What a call overwrites on the cpu backend is put back bit for bit, whatever lies beside it in a word."""

from __future__ import annotations

import numpy as np
import pytest

from polyseq.backends.cpu.cache import CpuCache
from polyseq.backends.cpu.compiler.features import features
from polyseq.backends.cpu.kv.layout import KvType
from polyseq.backends.cpu.threads.pool import Pool
from polyseq.graph import CachePart, KvLayer

N_STREAM, N_CELLS = 3, 120
LAYERS = {0: KvLayer(2, 6, 3, n_swa=4), 4: KvLayer(1, 40, 17, n_swa=4)}


def cells_of(kv_type: KvType) -> CpuCache:
    cache = CpuCache((CachePart("kv_swa", N_STREAM, N_CELLS, LAYERS),), kv_type=kv_type, pool=Pool(1, features()))
    every = np.arange(N_CELLS)
    for stream in range(N_STREAM):
        fill(cache, stream, every, np.random.default_rng(stream))
    return cache


def fill(cache: CpuCache, stream: int, cells: np.ndarray, rng: np.random.Generator) -> None:
    """Random bits, in codes and scales."""
    rows = cache.read("kv_swa", stream, cells)
    random = {
        name: a if name == "place" else np.frombuffer(rng.bytes(a.nbytes), a.dtype).reshape(a.shape)
        for name, a in rows.items()
    }
    cache.write("kv_swa", stream, cells, random)


def everything(cache: CpuCache) -> list[bytes]:
    return [a.tobytes() for s in range(N_STREAM) for a in cache.read("kv_swa", s, np.arange(N_CELLS)).values()]


@pytest.mark.parametrize("kv_type", ["bf16", "f32", "int8"])
@pytest.mark.parametrize("most", [3, 100])
def test_cells_hold_what_they_held(kv_type: KvType, most: int) -> None:
    """Several times over: some cells, of which some were kept before; none beside them changes."""
    cache, rng = cells_of(kv_type), np.random.default_rng(9)
    for _ in range(20):
        before = everything(cache)
        kept, different = cache.keeping(), set[int]()
        for _ in range(4):
            taken = rng.permutation(N_STREAM * N_CELLS)[: rng.integers(1, most + 1)]
            different |= set(taken.tolist())
            streams, cells = np.divmod(taken, N_CELLS)
            kept.keep("kv_swa", streams, cells)
            for stream in np.unique(streams):
                fill(cache, int(stream), cells[streams == stream], rng)
        assert everything(cache) != before
        assert sum(len(places) for places, _ in kept._words["kv_swa"]._kept) == len(different), "each cell once"
        kept.put_back()
        assert everything(cache) == before
        kept.put_back()
        assert everything(cache) == before, "as often as one likes"


@pytest.mark.parametrize("kv_type", ["bf16", "f32", "int8"])
def test_the_words_of_a_cell_are_those_that_it_writes(kv_type: KvType) -> None:
    cache = cells_of(kv_type)
    part, rng = cache.parts["kv_swa"], np.random.default_rng(1)
    for cell in range(16):
        written: set[int] = set()
        for _ in range(8):
            before = part.pool[0].view(np.uint32).copy()
            fill(cache, 0, np.array([cell]), rng)
            written |= set(np.flatnonzero(part.pool[0].view(np.uint32) != before).tolist())
        assert written == set(part.cell_words.of(np.array([cell]))[0].tolist())
