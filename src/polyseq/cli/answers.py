"""Answers as they come, and the ways of showing them.

Enters: the engine's events. Leaves: text on stdout. One prompt streams; several show a live table on a
terminal and whole answers, each as it ends, elsewhere; `--json` shows nothing until the end.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from polyseq.cli.text import end_of_line, one_line, plural, printable

_COUNT_WIDTH = 6
_PADDING = 8  # of the live table's four columns


@dataclass(slots=True)
class Answer:
    """One prompt and its answer so far."""

    i_prompt: int
    prompt: str
    seed: int
    n_prompt: int
    pieces: list[str] = field(default_factory=list)
    n_tokens: int = 0
    reason: str = ""  # "" while it grows
    message: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def ending(self) -> str:
        """How it ended, in words: 'stop, 34 tokens'."""
        ending = f"{self.reason or 'unfinished'}, {plural(self.n_tokens, 'token')}"
        return f"{ending}: {self.message}" if self.message else ending

    def as_json(self) -> dict[str, object]:
        return {
            "i_prompt": self.i_prompt,
            "prompt": self.prompt,
            "text": self.text,
            "n_prompt": self.n_prompt,
            "n_tokens": self.n_tokens,
            "reason": self.reason or "unfinished",
            "message": self.message or None,
            "seed": self.seed,
        }


class View(Protocol):
    """Shows answers; told after the answer itself has changed."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def grew(self, answer: Answer, text: str) -> None:
        """`text` was added to the answer."""
        ...

    def ended(self, answer: Answer) -> None:
        """The answer has its reason."""
        ...


def choose_view(answers: Sequence[Answer], *, as_json: bool) -> View:
    """The view that fits where stdout goes."""
    if as_json:
        return SilentView()
    if len(answers) == 1:
        return StreamView()
    if sys.stdout.isatty():
        return LiveView(answers)
    return BlockView(len(answers))


class SilentView:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def grew(self, answer: Answer, text: str) -> None:
        return None

    def ended(self, answer: Answer) -> None:
        return None


class StreamView(SilentView):
    """One answer, written as it comes."""

    def grew(self, answer: Answer, text: str) -> None:
        typer.echo(printable(text) if sys.stdout.isatty() else text, nl=False)
        sys.stdout.flush()

    def ended(self, answer: Answer) -> None:
        typer.echo()
        if answer.message:
            typer.echo(f"polyseq: {answer.message}", err=True)


class BlockView(SilentView):
    """Several answers, each written whole when it ends."""

    def __init__(self, n_answers: int) -> None:
        self._n_answers = n_answers

    def ended(self, answer: Answer) -> None:
        head = f"[{answer.i_prompt + 1}/{self._n_answers}] {one_line(answer.prompt, 100)}"
        typer.echo(f"{head}\n{answer.text.strip()}\n({answer.ending})\n")
        sys.stdout.flush()


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
