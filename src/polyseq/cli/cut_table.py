"""A drawing of how a batch was cut: a line per set of sequences, a column per ubatch.

Enters: a `Cut`. Leaves: a small grid on stderr.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from polyseq.cli.cut import Cut

_SHOWN_UBATCHES = 12


def print_cut(cut: Cut) -> None:
    """Prints the grid, after a blank line."""
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print()
    console.print(cut_table(cut))


def cut_table(cut: Cut) -> Table:
    """Pure. The grid; with very many ubatches the last ones are summed up in one column."""
    n_shown = min(len(cut.shapes), _SHOWN_UBATCHES)
    more = len(cut.shapes) - n_shown
    table = Table(title="cut of the first batch", title_justify="left", box=None, padding=(0, 1))
    table.add_column("sequences")
    for i, (n_seqs, n_seq_tokens) in enumerate(cut.shapes[:n_shown]):
        shape = f"{n_seqs}x{n_seq_tokens}" if n_seq_tokens else f"{n_seqs} ragged"
        table.add_column(f"ubatch {i}\n{shape}", justify="right")
    if more:
        table.add_column(f"{more} more", justify="right")
    for ids, counts in cut.rows.items():
        table.add_row(_label(ids), *_cells(counts, n_shown))
    totals = tuple(map(sum, zip(*cut.rows.values(), strict=True)))
    table.add_row("rows", *_cells(totals, n_shown), style="bold")
    return table


def _label(ids: tuple[int, ...]) -> str:
    if len(ids) == 1:
        return str(ids[0])
    if ids[-1] - ids[0] == len(ids) - 1:
        return f"{ids[0]}..{ids[-1]} (shared)"
    return f"{','.join(map(str, ids))} (shared)"


def _cells(counts: tuple[int, ...], n_shown: int) -> list[str]:
    cells = [str(n) if n else "·" for n in counts[:n_shown]]
    return [*cells, str(sum(counts[n_shown:]))] if len(counts) > n_shown else cells
