"""Answers as they come, and the ways of showing them.

Enters: the engine's events. Leaves: text on stdout. One prompt streams; several show a live table on a
terminal and whole answers, each as it ends, elsewhere; `--json` shows nothing until the end.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import TracebackType
from typing import Protocol, Self

import typer

from polyseq.cli.text import one_line, plural, printable


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
        live: View = import_module("polyseq.cli.live_view").LiveView(answers)  # only here: it takes `rich`
        return live
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
