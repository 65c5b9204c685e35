"""`polyseq verify`: rounding or defect? The same prompts alone, together, in other cuts, through other memories.

Enters: a model, perhaps prompts. Leaves: a table and a sentence on stdout (with `--json` one object); exit code 1
where the differences look like a defect.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from polyseq.backends import RunOptions
from polyseq.cli.bars import bars
from polyseq.cli.options import AsJson, Backend, KvType, ModelName, NoFetch, NThreads, SettingsFile
from polyseq.cli.progress import resolve_model, waiting
from polyseq.cli.prompts import encode_prompts, read_prompts
from polyseq.cli.reporting import EXIT_FAILED, print_json, reporting
from polyseq.cli.settings import chosen, read_settings
from polyseq.cli.tables import stdout_console
from polyseq.cli.text import plural
from polyseq.context import Context
from polyseq.explain.effective import Asked, Setting, effective
from polyseq.explain.verify import MOST_ROWS
from polyseq.explain.verify import Progress as OnProgress
from polyseq.explain.verify import verify as compare_runs
from polyseq.explain.verify_report import TOLERANCE, Report
from polyseq.model import Model

# of different lengths, so that cuts fit none of them evenly
DEFAULT_PROMPTS = (
    "The capital of France is",
    "2 + 2 =",
    "Water is wet, fire is hot, and ice is",
)


def verify(
    model: ModelName,
    prompt: Annotated[
        list[str] | None, typer.Option("-p", "--prompt", help="A prompt; repeat for more; left out, three short ones.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="One prompt per line; - reads stdin.")] = None,
    n_ctx: Annotated[
        int | None, typer.Option(min=0, help="Cells for the runs together; left out or 0, as many as they need.")
    ] = None,
    backend: Backend = None,
    n_threads: NThreads = None,
    kv_type: KvType = None,
    settings_file: SettingsFile = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Of a row's spread: beyond it a difference is never called rounding.")
    ] = TOLERANCE,
    most_rows: Annotated[int, typer.Option(min=1, help="Most rows compared, spread over all.")] = MOST_ROWS,
    as_json: AsJson = False,
    no_fetch: NoFetch = False,
) -> None:
    """Tell rounding from a defect: the same prompts in every way they can be run."""
    with reporting(as_json=as_json):
        given = list(prompt or [])
        texts = read_prompts(given, file) if given or file is not None else list(DEFAULT_PROMPTS)
        tuned = read_settings(settings_file)
        path = resolve_model(model, fetch=not no_fetch)
        with waiting(f"loading {path.name}"):
            loaded = Model.load(path)
            tokens = encode_prompts(loaded, texts, chat=False, system=None)
        who = chosen(backend, tuned.backend if tuned else None, "auto")
        options = RunOptions(
            chosen(n_threads, tuned.n_threads if tuned else None, None),
            chosen(kv_type, tuned.kv_type if tuned else None, None),
        )
        from_file = str(settings_file) if settings_file else None
        asked = Asked(n_ctx=1, backend=backend, n_threads=n_threads, kv_type=kv_type, from_file=from_file)
        config = _config(loaded, who, options, asked)
        with _bar() as progress:
            report = compare_runs(
                loaded,
                tokens,
                backend=who,
                options=options,
                n_ctx=chosen(n_ctx, tuned.n_ctx if tuned else None, 0),
                tolerance=tolerance,
                most_rows=most_rows,
                progress=progress,
            )
        if as_json:
            print_json({"effective": {s.name: asdict(s) for s in config}, **report.to_json()})
        else:
            stdout_console().print(", ".join(f"{s.name} {s.effective}" for s in config))
            _print(report)
        if report.verdict == "defect":
            raise typer.Exit(EXIT_FAILED)


def _config(model: Model, backend: str, options: RunOptions, asked: Asked) -> list[Setting]:
    """What holds for all runs alike; their sizes are their own."""
    ctx = Context(model, n_ctx=1, backend=backend, n_threads=options.n_threads, kv_type=options.kv_type)
    shared = ("backend", "n_threads", "kv_type", "keeps")
    return [setting for setting in effective(ctx, asked).settings if setting.name in shared]


@contextmanager
def _bar() -> Iterator[OnProgress]:
    """A bar over all rows of all runs on stderr, where that is a terminal."""
    rows = TextColumn("{task.completed}/{task.total} rows")
    with bars(TextColumn("{task.description}"), BarColumn(), rows, TimeRemainingColumn()) as shown:
        task = shown.add_task("", total=None)

        def progress(what: str, done: int, total: int) -> None:
            shown.update(task, description=what, completed=done, total=total)

        yield progress


def _print(report: Report) -> None:
    console = stdout_console()
    console.print(table(report))
    console.print()
    for r in report.results:
        if r.parting is not None:
            console.print(
                f"{r.run.name}: {plural(r.n_beyond, 'row')} {_fault(report)}, from {r.parting}", soft_wrap=True
            )
    console.print(report.text, soft_wrap=True)


def _fault(report: Report) -> str:
    return "not with the bits owed" if report.same_bits else "beyond the limit"


def table(report: Report) -> Table:
    """Pure. A line per run."""
    title = f"{plural(report.n_prompts, 'prompt')}, {plural(report.n_rows, 'row')}, each run against solo"
    out = Table(title=title, title_justify="left", box=None, padding=(0, 1), pad_edge=False)
    out.add_column("run")
    for name in ("calls", "ubatches", "max diff", "of spread", "KL", "argmax"):
        out.add_column(name, justify="right")
    for r in report.results:
        out.add_row(
            r.run.name,
            str(r.n_calls),
            str(r.n_ubatches),
            f"{r.max_abs:.1e}",
            f"{r.relative:.1e}",
            f"{r.kl:.1e}",
            str(r.n_argmax_changed),
        )
    return out
