"""`polyseq tune`: measures this machine with a model, and chooses the sizes of a context for a stated load.

Enters: a model, a load, a goal, seconds to spend. Leaves: curves, a table and a reason on stdout (with `--json` one
object), a picture and a settings file where asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.table import Table

from polyseq.backends import RunOptions
from polyseq.cli.bars import bars
from polyseq.cli.files import writing
from polyseq.cli.options import Backend, KvType, ModelName, NoFetch, NThreads
from polyseq.cli.progress import resolve_model, waiting
from polyseq.cli.reporting import no_warnings, print_json, reporting
from polyseq.cli.settings import machine_facts
from polyseq.cli.text import human_bytes, plural
from polyseq.explain.cost import Observation
from polyseq.explain.curves import curves, svg_of, text_lines
from polyseq.explain.load import Load, Outcome
from polyseq.explain.measure import MOST_ROWS, Measured, measure
from polyseq.explain.recommend import GOALS, Goal, Recommendation, recommend
from polyseq.explain.settings import Settings
from polyseq.model import Model

_SHOWN = 10
_LOAD, _SHOW = "The load", "What to show"


def tune(
    model: ModelName,
    users: Annotated[int, typer.Option(min=1, max=256, help="Users at once.", rich_help_panel=_LOAD)] = 8,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.", rich_help_panel=_LOAD)] = 200,
    answer: Annotated[int, typer.Option(min=1, help="Tokens of an answer, on average.", rich_help_panel=_LOAD)] = 100,
    goal: Annotated[
        str,
        typer.Option(
            help="throughput (tokens per second), stall (the longest wait for a next token) or memory.",
            rich_help_panel=_LOAD,
        ),
    ] = "throughput",
    seconds: Annotated[float, typer.Option(min=1, help="Time to measure; one round is always finished.")] = 30.0,
    backend: Backend = None,
    n_threads: NThreads = None,
    kv_type: KvType = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write a settings file for other commands.", rich_help_panel=_SHOW)
    ] = None,
    svg_file: Annotated[
        Path | None, typer.Option("--svg", help="Draw the curves into a file.", rich_help_panel=_SHOW)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead.", rich_help_panel=_SHOW)
    ] = False,
    no_fetch: NoFetch = False,
) -> None:
    """Measure this machine with a model and choose n_batch, n_ubatch and the rest."""
    with reporting(as_json=as_json), no_warnings():
        load, wanted = Load(users, prompt, answer), _goal(goal)
        path = resolve_model(model, fetch=not no_fetch)
        with waiting(f"loading {path.name}"):
            loaded = Model.load(path)
        with _bar() as progress:
            options = RunOptions(n_threads, kv_type)
            measured = measure(loaded, seconds=seconds, backend=backend or "auto", options=options, progress=progress)
            found = _recommended(measured, load, wanted, progress)
        settings = _settings(model, measured, found)
        _write(settings, out, measured, svg_file, loaded.name)
        if as_json:
            print_json(_document(settings, measured, found))
        else:
            _print(loaded.name, measured, found, out)


def _goal(goal: str) -> Goal:
    for known in GOALS:
        if goal == known:
            return known
    raise typer.BadParameter(f"--goal {goal!r} is none of {', '.join(GOALS)}")


def _recommended(
    measured: Measured, load: Load, goal: Goal, progress: Callable[[str, float, float], None]
) -> Recommendation:
    return recommend(
        load,
        goal,
        cost=measured.cost,
        memory_use=measured.memory,
        kv_bytes_per_cell=measured.kv_bytes_per_cell,
        most_rows=measured.most_rows,
        packed=measured.packed,
        progress=lambda i, n: progress("comparing sizes", i, n),
    )


def _settings(model: str, measured: Measured, found: Recommendation) -> Settings:
    best, choice = found.best, found.best.choice
    load = {"users": found.load.users, "prompt": found.load.prompt, "answer": found.load.answer, "goal": found.goal}
    return Settings(
        model=model,
        backend=measured.backend,
        n_ctx=best.n_ctx,
        n_seq_max=choice.n_seq_max,
        n_batch=min(choice.n_batch, best.n_ctx),
        n_ubatch=min(choice.n_ubatch, best.n_ctx),
        unified=choice.unified,
        cost=measured.cost,
        memory=measured.memory,
        kv_bytes_per_cell=measured.kv_bytes_per_cell,
        load=load | {"predicted": asdict(best), "reason": found.reason},
        machine=machine_facts(),
        n_threads=measured.options.n_threads,
        kv_type=measured.options.kv_type,
    )


@contextmanager
def _bar() -> Iterator[Callable[[str, float, float], None]]:
    """A bar on stderr, where that is a terminal."""
    percent = TextColumn("{task.percentage:>3.0f}%")
    with bars(BarColumn(), percent, TextColumn("{task.description}")) as shown:
        task = shown.add_task("", total=None)

        def progress(what: str, done: float, total: float) -> None:
            shown.update(task, description=what, completed=done, total=total)

        yield progress


def _write(settings: Settings, out: Path | None, measured: Measured, svg_file: Path | None, name: str) -> None:
    """Changes the file system where asked."""
    with writing():
        if out is not None:
            settings.write(out)
        if svg_file is not None:
            title = f"{name}, {measured.backend} backend"
            svg_file.write_text(svg_of(curves(measured), title=title), encoding="utf-8")


# ---- what leaves -----------------------------------------------------------------------------------------


def fit_error(measured: Measured) -> float:
    """Pure. The median relative error of the cost model on the calls that it was fitted to."""
    cost = measured.cost
    return float(np.median([abs(cost.seconds(*o.shapes) / o.median - 1) for o in measured.observations]))


def unrest(observations: Sequence[Observation]) -> float:
    """Pure. The median over calls of (largest - smallest) / median of its repeats; 0 with one repeat."""
    return float(np.median([(max(o.seconds) - min(o.seconds)) / o.median for o in observations]))


def _document(settings: Settings, measured: Measured, found: Recommendation) -> dict[str, Any]:
    cost = measured.cost
    return {
        "settings": settings.to_json(),
        "effective": measured.effective.to_json()["settings"],
        "reason": found.reason,
        "candidates": [asdict(o) for o in found.outcomes],
        "measured": [
            {**asdict(point), "median_s": o.median, "seconds": list(o.seconds), "model_s": cost.seconds(*o.shapes)}
            for point, o in zip(measured.points, measured.observations, strict=True)
        ],
        "memory": [
            {"n_tokens": s.n_tokens, "n_outputs": s.n_outputs, "n_bytes": n, "model_bytes": measured.memory.n_bytes(s)}
            for s, n in zip(measured.byte_shapes, measured.n_bytes, strict=True)
        ],
        "fit_error": fit_error(measured),
        "unrest": unrest(measured.observations),
    }


def _print(name: str, measured: Measured, found: Recommendation, out: Path | None) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    least = min(len(o.seconds) for o in measured.observations)
    most = max(len(o.seconds) for o in measured.observations)
    options = measured.options
    used = [f"{options.n_threads} threads"] if options.n_threads else []
    console.print(f"{name}, {', '.join([f'{measured.backend} backend', *used, f'KV {options.kv_type}'])}", style="bold")
    console.print(
        f"{len(measured.points)} calls, each {least if least == most else f'{least} to {most}'} times; "
        f"repeats spread by {unrest(measured.observations):.0%}, the model fits them within "
        f"{fit_error(measured):.0%} (medians)\n"
    )
    for line in text_lines(curves(measured)):
        console.print(line)
    load, best = found.load, found.best
    console.print(
        f"{plural(load.users, 'user')}, prompts of {load.prompt}, answers of {load.answer}; goal {found.goal}",
        style="bold",
    )
    console.print(outcome_table(found.outcomes[:_SHOWN]))
    if len(found.outcomes) > _SHOWN:
        console.print(f"and {len(found.outcomes) - _SHOWN} more", style="dim")
    choice = best.choice
    console.print(
        f"\ntake n_batch {min(choice.n_batch, best.n_ctx)}, n_ubatch {min(choice.n_ubatch, best.n_ctx)}, "
        f"n_seq_max {choice.n_seq_max}, {_memory(best)}, n_ctx {best.n_ctx}",
        style="bold",
    )
    console.print(f"because: {found.reason}")
    if measured.most_rows < MOST_ROWS:
        console.print(
            f"no ubatch above {measured.most_rows} rows was measured, so none is recommended; "
            "more --seconds let larger ones be measured"
        )
    if out is not None:
        console.print(f"written to {out}")


def outcome_table(outcomes: Sequence[Outcome]) -> Table:
    """Pure. A line per candidate, 80 columns at most."""
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for head in ("n_batch", "n_ubatch", "n_seq_max"):
        table.add_column(head, justify="right")
    table.add_column("memory")
    for head in ("tokens/s", "stall", "1st token", "bytes"):
        table.add_column(head, justify="right")
    for i, o in enumerate(outcomes):
        table.add_row(
            str(o.choice.n_batch),
            str(o.choice.n_ubatch),
            str(o.choice.n_seq_max),
            _memory(o),
            f"{o.tokens_per_s:.1f}",
            _seconds(o.stall_s),
            _seconds(o.first_token_s),
            human_bytes(o.n_bytes),
            style="" if i else "bold",
        )
    return table


def _memory(o: Outcome) -> str:
    return "unified" if o.choice.unified else "streams"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
