"""A drawing of how a batch was cut: a line per set of sequences, a column per ubatch, rows counted.

Enters: the ubatches of one batch. Leaves: numbers for `--json`, a small grid for people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from polyseq.batch.seqset import ids_of
from polyseq.split import Ubatch

_SHOWN_UBATCHES = 12


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

    def table(self) -> Table:
        """Pure. The grid; with very many ubatches the last ones are summed up in one column."""
        n_shown = min(len(self.shapes), _SHOWN_UBATCHES)
        more = len(self.shapes) - n_shown
        table = Table(title="cut of the first batch", title_justify="left", box=None, padding=(0, 1))
        table.add_column("sequences")
        for i, (n_seqs, n_seq_tokens) in enumerate(self.shapes[:n_shown]):
            shape = f"{n_seqs}x{n_seq_tokens}" if n_seq_tokens else f"{n_seqs} ragged"
            table.add_column(f"ubatch {i}\n{shape}", justify="right")
        if more:
            table.add_column(f"{more} more", justify="right")
        for ids, counts in self.rows.items():
            table.add_row(_label(ids), *_cells(counts, n_shown))
        totals = tuple(map(sum, zip(*self.rows.values(), strict=True)))
        table.add_row("rows", *_cells(totals, n_shown), style="bold")
        return table


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


def _label(ids: tuple[int, ...]) -> str:
    if len(ids) == 1:
        return str(ids[0])
    if ids[-1] - ids[0] == len(ids) - 1:
        return f"{ids[0]}..{ids[-1]} (shared)"
    return f"{','.join(map(str, ids))} (shared)"


def _cells(counts: tuple[int, ...], n_shown: int) -> list[str]:
    cells = [str(n) if n else "·" for n in counts[:n_shown]]
    return [*cells, str(sum(counts[n_shown:]))] if len(counts) > n_shown else cells
