"""Cells of the CPU backend: where they are placed, what is read and written, and what attention has to visit."""

from __future__ import annotations

import numpy as np
import pytest

from cpu_calls import HERE
from cpu_cells import Cells, Row
from polyseq.backends.cpu.kv.layout import KvType
from polyseq.backends.cpu.kv.part import KvPart
from polyseq.backends.cpu.words.tile_words import T, U
from polyseq.graph import CachePart, KvLayer

KINDS: tuple[KvType, ...] = ("bf16", "f32", "int8")
LAYERS = {0: KvLayer(2, 64, 32), 3: KvLayer(1, 24, 20)}


def part(kind: KvType, n_stream: int, n_cells: int = 70) -> KvPart:
    return KvPart(CachePart("kv", n_stream, n_cells, LAYERS), kind, HERE)


def fill(kv: KvPart, stream: int, cells: np.ndarray, seed: int = 0) -> None:
    """Random bytes as rows: whatever they mean, they come back."""
    kv.write(stream, cells, random_rows(kv, stream, cells, np.random.default_rng(seed)))


def random_rows(kv: KvPart, stream: int, cells: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    rows = kv.read(stream, cells)
    return {
        key: rng.integers(0, 256, (*a.shape[:-1], a.shape[-1] * a.itemsize), np.uint8).view(a.dtype)
        if a.ndim > 1
        else a
        for key, a in rows.items()
    }


def values(kv: KvPart, stream: int, cells: np.ndarray) -> dict[str, bytes]:
    """What these cells hold, wherever they are."""
    return {key: rows.tobytes() for key, rows in kv.read(stream, cells).items() if key != "place"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_stream", [1, 3])
def test_rows_come_back_bit_for_bit(kind: KvType, n_stream: int) -> None:
    source, target = part(kind, n_stream), part(kind, n_stream)
    cells = np.random.default_rng(1).permutation(70)[:50]
    fill(source, n_stream - 1, cells)
    saved = source.read(n_stream - 1, cells)
    assert saved.keys() == {"0.k", "0.v", "3.k", "3.v", "place"}
    others = np.random.default_rng(2).permutation(70)[:50]
    target.write(n_stream - 1, others, saved)
    assert values(target, n_stream - 1, others) == values(source, n_stream - 1, cells)


@pytest.mark.parametrize("kind", KINDS)
def test_copy_stream(kind: KvType) -> None:
    kv = part(kind, 3)
    fill(kv, 0, np.arange(40), seed=1)
    fill(kv, 2, np.arange(70), seed=2)
    kv.copy_stream(0, 2)
    assert values(kv, 0, np.arange(70)) == values(kv, 2, np.arange(70))
    assert not any(any(a) for a in values(kv, 1, np.arange(70)).values())


@pytest.mark.parametrize("kind", KINDS)
def test_streams_that_reach_over_bundles(kind: KvType) -> None:
    kv, every = part(kind, 3, 300), np.arange(300)
    assert len(kv.pool) == 4, "57 blocks"
    fill(kv, 0, every, seed=1)
    fill(kv, 1, every, seed=2)
    first = values(kv, 0, every)
    kv.copy_stream(1, 2)
    assert values(kv, 0, every) == first != values(kv, 1, every) == values(kv, 2, every)


def test_a_head_s_blocks_follow_each_other() -> None:
    """Attention reads them one after another."""
    kv = part("bf16", 1, 300)
    here, next_one, next_bundle = (kv.cell_words.of(np.array([16 * block]))[0] for block in (2, 3, 18))
    sizes = {n for head in kv.layout.heads.values() for n in (head.k_bytes, head.v_bytes)}
    assert {4 * words for words in (next_one - here).tolist()} == sizes
    assert {4 * words for words in (next_bundle - here).tolist()} == {kv.layout.bundle_bytes}


def test_a_cell_never_written_reads_as_zeros() -> None:
    assert not any(any(a) for a in values(part("bf16", 1), 0, np.arange(70)).values())


def visited(cells: Cells, rows: list[Row]) -> int:
    """Blocks of K and V that attention reads for these rows."""
    cells.tiles.list_tiles(cells.view(rows))
    return int(cells.tiles.runs[:, U.COUNT].sum())


def in_turn(n_seq: int, n_pos: int, unified: bool) -> tuple[Cells, list[Row]]:
    cells = Cells(
        KvLayer(1, 32, 32), "bf16", HERE, n_cells=n_seq * n_pos if unified else n_pos, n_seq=n_seq, unified=unified
    )
    rows: list[Row] = []
    for pos in range(n_pos):
        rows = [((s,), pos, pos * n_seq + s if unified else pos) for s in range(n_seq)]
        cells.write(rows)
    return cells, rows


def test_decoding_in_turn_costs_what_streams_cost() -> None:
    unified, streams = in_turn(24, 90, True), in_turn(24, 90, False)
    assert visited(*unified) == visited(*streams) == 24 * -(-90 // 16)


def test_a_shared_prefix_is_read_once_per_tile() -> None:
    cells = Cells(KvLayer(1, 32, 32), "bf16", HERE, n_cells=800, n_seq=8, unified=True)
    cells.write([(tuple(range(8)), pos, pos) for pos in range(160)])
    rows: list[Row] = []
    for step in range(16):
        rows = [((s,), 160 + step, 160 + 8 * step + s) for s in range(8)]
        cells.write(rows)
    assert visited(cells, rows) == 2 * 10 + 8  # two tiles of four rows, then a block of its own for each


def test_a_window_visits_its_blocks_only() -> None:
    cells, rows = in_turn(3, 200, True)
    cells.tiles.list_tiles(cells.view(rows, n_swa=32))
    assert int(cells.tiles.runs[:, U.COUNT].sum()) == 3 * 3


def test_free_blocks_are_used_again_and_memory_is_taken_as_needed() -> None:
    cells = Cells(KvLayer(1, 32, 32), "bf16", HERE, n_cells=320, n_seq=2, unified=True)
    for _ in range(20):
        cells.write([((0,), pos, pos) for pos in range(48)])
        cells.write([((1,), pos, 100 + pos) for pos in range(20)])
        for seq in range(2):
            cells.free(seq)
        cells.write([((0,), 0, 319)])
        cells.free(0)
    assert int(cells.part.touched.sum()) <= 6


def test_a_sequence_goes_on_where_it_was_cut() -> None:
    """Tokens taken back and decoded again do not begin a new block."""
    cells = Cells(KvLayer(1, 32, 32), "bf16", HERE, n_cells=64, n_seq=1, unified=True)
    cells.write([((0,), pos, pos) for pos in range(10)])
    for _ in range(5):
        cells.free(0, keep=range(8))
        rows: list[Row] = [((0,), 8, 20), ((0,), 9, 21)]
        cells.write(rows)
    assert visited(cells, rows) == 1


def test_every_cell_finds_a_place_when_blocks_run_out() -> None:
    """More sequences than blocks: cells share blocks, and each still has a place of its own."""
    n = 4000
    cells = Cells(KvLayer(1, 2, 2), "f32", HERE, n_cells=n, n_seq=n, unified=True)
    cells.members = np.eye(n, dtype=np.bool_)
    for first in range(0, n, 500):
        cells.write([((s,), 0, s) for s in range(first, first + 500)])
    places = cells.part.places(0, np.arange(n))
    assert len(np.unique(places)) == n and places.min() >= 0


def test_tiles_hold_every_row_once() -> None:
    cells, _ = in_turn(5, 40, True)
    rows: list[Row] = [((s,), pos, pos * 5 + s) for pos in range(31, 40) for s in range(5)]
    cells.tiles.list_tiles(cells.view(rows))
    tiles = cells.tiles.tiles
    seen = [int(row) for tile in tiles for row in tile[T.ROW : T.ROW + tile[T.N_ROWS]]]
    assert sorted(seen) == list(range(45))
    # A tile holds rows of one sequence: nothing is shared across.
    assert all(len({rows[r][0][0] for r in tile[T.ROW : T.ROW + tile[T.N_ROWS]]}) == 1 for tile in tiles)
