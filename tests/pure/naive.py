"""The plainest memory there can be: per sequence a list of tokens with their positions; rows are computed from scratch.

No cells, no cuts, no windows let go, no states kept: what a real memory does is right if nobody can tell it from this.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq import Model
from polyseq.backends import backend
from polyseq.graph import CachePart, Inputs, Wanted
from polyseq.memory.rs_view import RsView
from polyseq.memory.view import KvView

F32 = NDArray[np.float32]


@dataclass(eq=False)  # two entries with equal values are still two
class Entry:
    """A token at a position. Sequences that share it (a copy within one stream) see it move together."""

    pos: int
    token: int


class Naive:
    """`seqs[s]`: the entries of sequence s in the order in which they came."""

    def __init__(self, model: Model, n_seqs: int) -> None:
        self._scratch = Scratch(model)
        self.seqs: list[list[Entry]] = [[] for _ in range(n_seqs)]

    def range(self, s: int) -> tuple[int, int]:
        """Smallest and largest position, -1 where there is none."""
        pos = [entry.pos for entry in self.seqs[s]]
        return min(pos, default=-1), max(pos, default=-1)

    def logits(self, s: int, new: list[Entry]) -> F32:
        """[len(new), n_vocab] of entries that would come after what s holds."""
        return self._scratch.logits(tuple((a.pos, a.token) for a in self.seqs[s] + new))[len(self.seqs[s]) :]

    def append(self, s: int, tokens: list[int]) -> list[Entry]:
        """Pure. The entries that would continue s."""
        first = self.range(s)[1] + 1
        return [Entry(first + i, token) for i, token in enumerate(tokens)]

    def within(self, s: int, p0: int, p1: int) -> list[Entry]:
        """Entries of s in [p0, p1), -1 = open."""
        return [a for a in self.seqs[s] if a.pos >= p0 and (p1 < 0 or a.pos < p1)]

    def rm(self, s: int, p0: int = -1, p1: int = -1) -> None:
        gone = self.within(s, p0, p1)
        self.seqs[s] = [a for a in self.seqs[s] if a not in gone]

    def share(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """dst gets src's entries themselves."""
        have = self.seqs[dst]
        have += [a for a in self.within(src, p0, p1) if a not in have]

    def copy(self, src: int, dst: int) -> None:
        """dst becomes entries of its own that are like src's."""
        self.seqs[dst] = [Entry(a.pos, a.token) for a in self.seqs[src]]

    def add(self, s: int, p0: int, p1: int, delta: int) -> None:
        """Moves entries of s, and forgets for everybody those that leave on the left."""
        for a in self.within(s, p0, p1):
            a.pos += delta
        self.seqs = [[a for a in entries if a.pos >= 0] for entries in self.seqs]


class Scratch:
    """Logits of a whole list at once, on cache tensors made for it, each place holding what its row wrote."""

    def __init__(self, model: Model) -> None:
        self._architecture = model.architecture
        self._loaded = model.loaded(backend("reference"))
        self._graph = model.architecture.build(Wanted())
        self._known: dict[tuple[tuple[int, int], ...], F32] = {}

    def logits(self, rows: tuple[tuple[int, int], ...]) -> F32:
        """[n, n_vocab] for (position, token) in the order in which they came."""
        if rows not in self._known:
            self._known[rows] = self._computed(*np.array(rows, np.int32).T)
        return self._known[rows]

    def _computed(self, pos: NDArray[np.int32], tokens: NDArray[np.int32]) -> F32:
        n, layers = len(pos), self._architecture.cache_layers
        kept = {il: layer for il, layer in enumerate(layers) if layer is not None}
        parts = {layer.part: {i: a for i, a in kept.items() if a.part == layer.part} for layer in layers}
        cache = self._loaded.cache(tuple(CachePart(name, 1, n, inside) for name, inside in parts.items()))
        window = max((getattr(layer, "n_swa", 0) for layer in layers), default=0)
        inputs = Inputs(
            token=tokens,
            pos=pos[None],
            out_rows=np.arange(n, dtype=np.int32),
            kv=_view(pos, 0),
            kv_swa=_view(pos, window),
            rs=RsView(1, n, np.array([-1], np.int32), np.full((1, n), -1, np.int32)),
        )
        return self._loaded.plan(self._graph, cache).run(inputs)["logits"]


def _view(pos: NDArray[np.int32], n_swa: int) -> KvView:
    """Cell i holds row i; a row sees what stands at its position or before. Earlier rows do not see later ones."""
    n = len(pos)
    return KvView(
        n_kv=n,
        streams=np.zeros(1, np.int32),
        row_stream=np.zeros(n, np.intp),
        cells=np.arange(n, dtype=np.int32),
        pos=pos,
        cell_pos=pos[None],
        members=np.tri(n, dtype=bool),
        row_member=np.arange(n),
        n_swa=n_swa,
    )
