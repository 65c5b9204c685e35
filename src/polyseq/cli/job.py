"""What `generate` has to do once everything is read, checked and loaded.

Enters: the command's parts. Leaves: one value that the run and its summary read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyseq.cli.files import writing
from polyseq.context import Context
from polyseq.explain.effective import Effective
from polyseq.model import Model
from polyseq.sampling import SamplingParams
from polyseq.trace import Event, HeldCall, Opened, TraceFile


@dataclass(frozen=True, slots=True)
class Job:
    """Prompts to be answered, all at once."""

    model: Model
    ctx: Context
    prompts: list[str]  # as typed
    tokens: list[NDArray[np.int32]]  # [n_prompt] i32 for each
    params: SamplingParams  # without a seed, each prompt gets one of its own
    max_tokens: int | None
    chat: bool
    config: Effective


def needed_cells(prompts: Sequence[NDArray[np.int32]], max_tokens: int | None, n_seqs: int, *, unified: bool) -> int:
    """Pure. Cells that let the `n_seqs` longest prompts be answered at once; 0 (the model's) without a limit."""
    if max_tokens is None:
        return 0
    longest = sorted((len(p) + max_tokens for p in prompts), reverse=True)[:n_seqs]
    return sum(longest) if unified else n_seqs * longest[0]


class TraceAfterWarmUp:
    """A sink that keeps a context's calls out of the file until `start`; what warms it up leaves the memory empty."""

    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self._started = False

    def start(self) -> None:
        """Changes the sink: from now on everything is recorded."""
        self._started = True

    def record(self, event: Event, /) -> None:
        """Changes the file, once started; what tells of the context is recorded at once."""
        if self._started or isinstance(event, Opened):
            self._file.record(event)

    def holds(self, call: HeldCall, now: int, /) -> bool:
        """Changes the file's store: as `TraceFile.holds`, once started."""
        return self._started and self._file.holds(call, now)

    def lets_go(self, call: HeldCall, /) -> None:
        """Changes the file's store: as `TraceFile.lets_go`."""
        self._file.lets_go(call)


@contextmanager
def tracing(path: Path | None) -> Iterator[TraceAfterWarmUp | None]:
    """A sink for `path` while the body runs, None without one. Raises `typer.BadParameter`."""
    if path is None:
        yield None
        return
    with writing():
        file = TraceFile(path)
    with file:
        yield TraceAfterWarmUp(file)
