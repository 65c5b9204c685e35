"""Several answers at once on a terminal, as they grow.

Enters: answers, and who of them grew or ended. Leaves: a live table, whole answers above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from polyseq.cli.answers import Answer
from polyseq.cli.text import end_of_line, one_line, printable

_COUNT_WIDTH = 6
_PADDING = 8  # of the live table's four columns


class LiveView:
    """Several answers on a terminal: those that grow in a table, those that ended above it, whole."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._growing = {a.i_prompt: a for a in answers}
        self._n_answers = len(answers)
        self._console = Console(highlight=False)
        self._live = Live(get_renderable=self._table, console=self._console, transient=True, refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def grew(self, answer: Answer, text: str) -> None:
        return None  # the table reads the answers when it is drawn

    def ended(self, answer: Answer) -> None:
        self._growing.pop(answer.i_prompt, None)
        head = Text(f"[{answer.i_prompt + 1}/{self._n_answers}] {one_line(answer.prompt, 200)}", style="bold")
        body = Text(printable(answer.text.strip()))
        self._console.print(head, body, Text(f"({answer.ending})\n", style="dim"), sep="\n")

    def _table(self) -> Table:
        n_index = len(str(self._n_answers))
        n_prompt = (self._console.width - n_index) // 4
        n_text = max(self._console.width - n_index - n_prompt - _COUNT_WIDTH - _PADDING, 10)
        table = Table(box=None, padding=(0, 1), show_header=False)
        table.add_column(width=n_index, justify="right", style="cyan")
        table.add_column(width=n_prompt, no_wrap=True, style="bold")
        table.add_column(width=n_text, no_wrap=True)
        table.add_column(width=_COUNT_WIDTH, justify="right", style="dim")
        for answer in list(self._growing.values())[: max(self._console.height - 2, 1)]:
            prompt = Text(one_line(answer.prompt, n_prompt))
            tail = Text(end_of_line("".join(answer.pieces[-n_text:]), n_text))
            table.add_row(str(answer.i_prompt + 1), prompt, tail, str(answer.n_tokens))
        return table
