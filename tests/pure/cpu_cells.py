"""Cells for tests of the CPU backend's cache: metadata as a memory would keep it, K and V with known values.

Enters: which sequence writes which position into which cell. Leaves: views, CPU cell tensors and the reference
backend's, both holding the same numbers (those that the CPU's cells stand for).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.kv.layout import KvType
from polyseq.backends.cpu.kv.part import KvPart
from polyseq.backends.cpu.tiles.tiles import Tiles
from polyseq.backends.reference.cache import ReferenceCache
from polyseq.graph import CachePart, KvLayer
from polyseq.memory.view import KvView

Row = tuple[Sequence[int], int, int]  # its sequences (the first is whose cells it sees), position, cell


class Cells:
    """`n_stream` streams, or one that sequences share, with one layer."""

    def __init__(
        self,
        layer: KvLayer,
        kind: KvType,
        features: Features,
        *,
        n_cells: int,
        n_seq: int,
        unified: bool,
        seed: int = 0,
    ) -> None:
        self.n_stream = 1 if unified else n_seq
        self.unified, self.n_seq = unified, n_seq
        self.pos = np.full((self.n_stream, n_cells), -1, np.int32)
        self.members = np.zeros((n_seq, n_cells), np.bool_)
        self.part = KvPart(CachePart("kv", self.n_stream, n_cells, {0: layer}), kind, features)
        self.tiles = Tiles(self.part)
        self.reference = ReferenceCache((self.part.part,))
        self.rng = np.random.default_rng(seed)

    def write(self, rows: Sequence[Row]) -> None:
        """Rows of one ubatch take their cells, with random K and V."""
        view = self.view(rows)
        self.tiles.place_rows(view)
        streams = view.streams[view.row_stream]
        places = self.tiles.row_places[: len(rows)]
        for name, cells in self.part._cell_rows(0, self.part.layout.heads[0]).items():
            n_head, n_dim = self.part.layout.heads[0].n_head_kv, cells.n_dim
            cells.put_values(places, self.rng.normal(0, 1, (len(rows), n_head, n_dim)).astype(np.float32))
            kept = self.reference.k[0] if name == "k" else self.reference.v[0]
            kept[streams, :, view.cells] = cells.values(places)

    def free(self, seq: int, keep: Iterable[int] = ()) -> None:
        """A sequence leaves all cells but those at the positions `keep`."""
        stream = 0 if self.unified else seq
        leaves = self.members[seq] & ~np.isin(self.pos[stream], list(keep))
        self.members[seq] &= ~leaves
        self.pos[stream, leaves & ~self.members.any(axis=0) if self.unified else leaves] = -1

    def view(self, rows: Sequence[Row], *, n_swa: int = 0, ahead: Sequence[int] = ()) -> KvView:
        """The view of an ubatch of these rows, which have taken their cells. `ahead`: how far each sees on."""
        for seqs, pos, cell in rows:
            self.pos[0 if self.unified else seqs[0], cell] = pos
            for seq in seqs:
                self.members[seq, cell] = True
        firsts = np.array([seqs[0] for seqs, _, _ in rows])
        used = np.unique([seq for seqs, _, _ in rows for seq in seqs])
        streams = np.zeros(1, np.int32) if self.unified else used.astype(np.int32)
        n_kv = int(np.flatnonzero((self.pos[streams] >= 0).any(axis=0))[-1]) + 1
        return KvView(
            n_kv=n_kv,
            streams=streams,
            row_stream=np.zeros(len(rows), np.intp) if self.unified else np.searchsorted(used, firsts),
            cells=np.array([cell for _, _, cell in rows], np.int32),
            pos=np.array([pos for _, pos, _ in rows], np.int32),
            cell_pos=self.pos[streams, :n_kv],
            members=self.members[used, :n_kv] if self.unified else None,
            row_member=np.searchsorted(used, firsts) if self.unified else None,
            n_swa=n_swa,
            last_seen=np.array([row[1] + n for row, n in zip(rows, ahead, strict=True)], np.int32) if ahead else None,
        )

    def poison(self, view: KvView) -> None:
        """NaN and infinity in every place that no row of the view sees, on the CPU's side only."""
        seen = np.zeros((len(view.streams), view.n_kv), np.bool_)
        np.logical_or.at(seen, view.row_stream, view.visible(slice(None)))
        places = [self.part.places(int(s), np.flatnonzero(line)) for s, line in zip(view.streams, seen, strict=True)]
        hidden = np.setdiff1d(np.arange(self.part.n_blocks * 16), np.concatenate(places)).astype(np.int32)
        for cells in self.part._cell_rows(0, self.part.layout.heads[0]).values():
            cells.put_values(hidden, self._bad(len(hidden), cells.n_dim))

    def _bad(self, n: int, n_dim: int) -> NDArray[np.float32]:
        shape = (n, self.part.layout.heads[0].n_head_kv, n_dim)
        return self.rng.choice(np.array([np.nan, np.inf, -np.inf], np.float32), shape)
