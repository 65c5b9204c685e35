"""The block table in any history: each cell in use holds what was last written to it, and nothing else is touched."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_calls import HERE
from guarded import guarded
from on_backend import exact
from polyseq.backends.cpu.cache import CpuCache
from polyseq.backends.cpu.threads.pool import Pool
from polyseq.graph import CachePart, KvLayer
from polyseq.memory import window_pair
from polyseq.memory.view import KvView
from test_atomic import AFTER, CALL, PAST, failing, logits
from tiny import tiny_llama
from tiny_kinds import tiny_gemma3

N_SEQ, N_SWA = 5, 12


@dataclass
class Model:
    """The truth, as plain as can be: metadata by cell, and the number that was last written to it."""

    n_stream: int
    n_cells: int
    pos: dict[tuple[int, int], int] = field(default_factory=dict)  # by (stream, cell)
    seqs: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    value: dict[tuple[int, int], int] = field(default_factory=dict)
    next_pos: list[int] = field(default_factory=lambda: [0] * N_SEQ)

    def stream_of(self, seq: int) -> int:
        return 0 if self.n_stream == 1 else seq

    def leave(self, seq: int, *, below: int) -> None:
        """A sequence leaves its cells with positions below that."""
        for at in [at for at, seqs in self.seqs.items() if seq in seqs and self.pos[at] < below]:
            self.seqs[at].discard(seq)
            if not self.seqs[at]:
                del self.seqs[at], self.pos[at], self.value[at]

    def view(self, cells: list[tuple[int, int]], firsts: list[int]) -> KvView:
        used = sorted(set(firsts))
        streams = np.array([0] if self.n_stream == 1 else used, np.int32)
        pos = np.full((self.n_stream, self.n_cells), -1, np.int32)
        members = np.zeros((N_SEQ, self.n_cells), np.bool_)
        for (stream, cell), p in self.pos.items():
            pos[stream, cell] = p
            for seq in self.seqs[stream, cell]:
                members[seq, cell] = True
        n_kv = max(cell for stream, cell in self.pos if stream in streams) + 1
        unified = self.n_stream == 1
        return KvView(
            n_kv=n_kv,
            streams=streams,
            row_stream=np.zeros(len(cells), np.intp) if unified else np.searchsorted(used, firsts),
            cells=np.array([cell for _, cell in cells], np.int32),
            pos=np.array([self.pos[at] for at in cells], np.int32),
            cell_pos=pos[streams, :n_kv],
            members=members[used, :n_kv] if unified else None,
            row_member=np.searchsorted(used, firsts) if unified else None,
            n_swa=N_SWA,
        )


class History:
    """A part on its own, and the truth beside it."""

    def __init__(self, n_stream: int, n_cells: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.model = Model(n_stream, n_cells)
        layers = {2: KvLayer(1, 4, 3, n_swa=N_SWA)}
        self.cache = CpuCache((CachePart("kv_swa", n_stream, n_cells, layers),), kv_type="f32", pool=Pool(1, HERE))
        self.part, self.tiles = self.cache.parts["kv_swa"], self.cache.tiles["kv_swa"]
        self.n_written = 0
        self.kept: Any = self.cache.keeping()
        self.held_before: set[tuple[int, int]] = set()  # the call

    def ubatch(self) -> None:
        """Rows of some sequences, a few of two at once; free cells are taken, or cells that hold something."""
        model, cells, firsts = self.model, list[tuple[int, int]](), list[int]()
        for seq in self.rng.permutation(N_SEQ)[: self.rng.integers(1, N_SEQ + 1)].tolist():
            stream = model.stream_of(seq)
            for _ in range(self.rng.integers(1, 20)):
                left = [c for c in range(model.n_cells) if (stream, c) not in cells]
                free = [c for c in left if (stream, c) not in model.pos]
                if left:
                    cells.append((stream, int(self.rng.choice(free if free and self.rng.random() < 0.8 else left))))
                    firsts.append(seq)
        for at in cells:  # as `Cells.put`: who loses a cell loses what is older
            for owner in list(model.seqs.get(at, ())):
                model.leave(owner, below=model.pos[at] + 1)
        for at, seq in zip(cells, firsts, strict=True):
            shared = model.n_stream == 1 and self.rng.random() < 0.1
            model.pos[at], model.seqs[at] = model.next_pos[seq], {seq, int(self.rng.integers(N_SEQ)) if shared else seq}
            model.next_pos[seq] += 1
        if not cells:
            return
        taken = sorted(set(cells) & self.held_before)
        if taken:
            self.kept.keep("kv_swa", *np.array(taken).T)
        self.tiles.plan(model.view(cells, firsts), n_split=int(self.rng.integers(0, 6)))
        values = self.n_written + 1 + np.arange(len(cells))
        self.n_written += len(cells)
        self._put(self.tiles.row_places[: len(cells)], values)
        model.value |= dict(zip(cells, values.tolist(), strict=True))

    def _put(self, places: NDArray[np.int32], values: NDArray[np.intp]) -> None:
        for rows in self.part._cell_rows(2, self.part.layout.heads[2]).values():
            rows.put_values(places, np.tile(values[:, None, None], (1, 1, rows.n_dim)).astype(np.float32))

    def call(self) -> None:
        """A few ubatches, which stay or are taken back."""
        before = copy.deepcopy(self.model)
        self.kept, self.held_before = self.cache.keeping(), set(before.pos)
        for _ in range(self.rng.integers(1, 5)):
            self.ubatch()
        if self.rng.random() < 0.5:
            self.model = before
            self.kept.put_back()

    def free(self) -> None:
        seq = int(self.rng.integers(N_SEQ))
        self.model.leave(seq, below=int(self.rng.integers(0, self.model.next_pos[seq] + 2)))

    def restore(self) -> None:
        """What some cells hold goes to free ones, as after saving, or when gaps are filled."""
        model = self.model
        stream = int(self.rng.integers(model.n_stream))
        held = [cell for s, cell in model.pos if s == stream]
        free = [c for c in range(model.n_cells) if (stream, c) not in model.pos]
        n = min(len(held), len(free), int(self.rng.integers(0, 30)))
        src, dst = self.rng.permutation(held)[:n].astype(np.intp), self.rng.permutation(free)[:n].astype(np.intp)
        rows = self.part.read(stream, src)
        if self.rng.random() < 0.3:  # places that nobody could have
            rows["place"] = self.rng.integers(-(2**31), 2**31, n, np.int32)
        self.part.write(stream, dst, rows)
        for a, b in zip(src.tolist(), dst.tolist(), strict=True):
            for column in (model.pos, model.seqs, model.value):
                column[stream, b] = column.pop((stream, a))  # type: ignore[attr-defined]

    def copy(self) -> None:
        if self.model.n_stream > 1:
            src, dst = self.rng.permutation(N_SEQ)[:2].tolist()
            model = self.model
            model.leave(dst, below=1 << 30)
            for s, cell in [at for at in model.pos if at[0] == src]:
                model.pos[dst, cell], model.value[dst, cell] = model.pos[s, cell], model.value[s, cell]
                model.seqs[dst, cell] = {dst}
            model.next_pos[dst] = model.next_pos[src]
            self.part.copy_stream(src, dst)

    def check(self) -> None:
        if self.part.table is not None:
            self.part.table.check()
        for stream in range(self.model.n_stream):
            cells = np.array([cell for s, cell in self.model.pos if s == stream], np.intp)
            wanted = np.array([self.model.value[stream, cell] for cell in cells.tolist()], np.float32)
            rows = self.part.read(stream, cells)
            assert (rows["2.k"] == wanted[:, None, None]).all() and (rows["2.v"] == wanted[:, None, None]).all()


@pytest.mark.parametrize("n_stream", [1, N_SEQ])
@pytest.mark.parametrize("seed", range(12))
def test_any_history(n_stream: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    guards = guarded(monkeypatch)
    history = History(n_stream, (40, 61, 96, 200)[seed % 4] if n_stream == 1 else (20, 33)[seed % 2], seed)
    acts = (history.call, history.call, history.free, history.restore, history.copy)
    for _ in range(30):
        acts[history.rng.integers(len(acts))]()
        history.check()
    guards.check()


def test_blocks_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without spare blocks cells lie anywhere, and what a call may want back is still not given away."""
    monkeypatch.setattr("polyseq.backends.cpu.kv.block_table._SPARE", 1)
    guards = guarded(monkeypatch)
    for seed in range(8):
        history = History(1, 33, seed)
        for _ in range(20):
            (history.call if history.rng.random() < 0.8 else history.restore)()
            history.check()
    guards.check()


def test_a_row_without_a_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(1, 40, 0)
    monkeypatch.setattr(history.part, "call", lambda kernel: None)  # a kernel that leaves what was there
    model = history.model
    model.pos[0, 3], model.seqs[0, 3] = 0, {1}
    history.tiles._set_columns(model.view([(0, 3)], [1]))
    for bad in (-1, history.part.n_blocks * 16):
        history.tiles.row_places[0] = bad
        with pytest.raises(IndexError, match=f"row 0 would be written to place {bad} of"):
            history.tiles.place_rows(model.view([(0, 3)], [1]))


@pytest.mark.parametrize("kind", ["unified", "streams", "window, unified", "window, streams"])
def test_kernels_write_their_arrays_only(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A context's whole life, failures at each ubatch among it, between guards."""
    guards = guarded(monkeypatch)
    monkeypatch.setattr(window_pair, "WINDOW_PAD", 1)
    monkeypatch.setenv("POLYSEQ_BACKEND", "cpu")
    model = tiny_gemma3(n_swa=4).model if "window" in kind else tiny_llama().model
    sizes = {"n_ctx": 96, "n_seq_max": 2, "n_ubatch": 4, "unified": "unified" in kind, "n_threads": 2}
    ctx, other = exact(model, **sizes), exact(model, **sizes)
    logits(ctx, *PAST)
    for at in range(3):
        with failing(ctx, at, after=True), pytest.raises(MemoryError):
            logits(ctx, *CALL)
    wanted = logits(ctx, *CALL)
    logits(other, *PAST)
    np.testing.assert_array_equal(logits(other, *CALL), wanted)
    ctx.optimize()
    blob = ctx.save()
    other.memory.clear()
    other.restore(blob)
    np.testing.assert_array_equal(logits(other, *AFTER), logits(ctx, *AFTER))
    guards.check()
