"""How a batch was cut: rows counted, of every set of sequences in every ubatch.

Enters: the ubatches of one batch. Leaves: numbers for `--json` and for `cut_table`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyseq.batch.seqset import ids_of
from polyseq.split import Ubatch


@dataclass(frozen=True, slots=True)
class Cut:
    """Rows of each sequence set in each ubatch, sets in the order met."""

    shapes: tuple[tuple[int, int], ...]  # (n_seqs, n_seq_tokens) of each ubatch
    rows: dict[tuple[int, ...], tuple[int, ...]]  # sequence ids -> [n_ubatches] rows

    def as_json(self) -> dict[str, object]:
        return {
            "ubatches": [{"n_seqs": n_seqs, "n_seq_tokens": n} for n_seqs, n in self.shapes],
            "rows": [{"seq_ids": list(ids), "n_tokens": list(n)} for ids, n in self.rows.items()],
        }


def cut_of(ubatches: Sequence[Ubatch]) -> Cut:
    """Pure. Counts the rows of every sequence set in every ubatch."""
    rows: dict[tuple[int, ...], list[int]] = {}
    for i, ubatch in enumerate(ubatches):
        masks, first, counts = np.unique(ubatch.masks, axis=0, return_index=True, return_counts=True)
        for k in np.argsort(first):
            ids = tuple(ids_of(masks[k]).tolist())
            rows.setdefault(ids, [0] * len(ubatches))[i] = int(counts[k])
    shapes = tuple((u.n_seqs, u.n_seq_tokens) for u in ubatches)
    return Cut(shapes, {ids: tuple(counts) for ids, counts in rows.items()})
