"""`polyseq plan`: how a batch would be cut and placed, without a model.

Enters: rows from lengths or a file, the settings of a context. Leaves: a drawing and tables on stdout, or one JSON
object; pictures and a page where asked. Imports no model library, so it answers at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from polyseq.batch import Batch
from polyseq.batch.seqset import MAX_SEQ
from polyseq.cli.files import read_text, reading, writing
from polyseq.cli.reporting import no_warnings, reporting
from polyseq.cli.settings import read_settings
from polyseq.cli.text import any_of, plural
from polyseq.context_sizes import DEFAULT_N_UBATCH
from polyseq.explain.blocks import blocks
from polyseq.explain.compare import ABOUT, Candidate, compare
from polyseq.explain.document import candidate_document, document, spread
from polyseq.explain.grid import block_lines, grid
from polyseq.explain.html import page
from polyseq.explain.lanes import lanes
from polyseq.explain.png import write_png
from polyseq.explain.rows import rows_of_lengths, rows_of_text
from polyseq.explain.scene import scene
from polyseq.explain.simulation import Simulation, simulate
from polyseq.explain.spec import STRATEGIES, PlanSpec
from polyseq.explain.svg import svg
from polyseq.explain.tables import block_listing, compare_listing, way_listing
from polyseq.explain.ways import Ways, way_runs, ways
from polyseq.memory import examples

WIDTH = 80  # where no terminal says otherwise

_MEMORIES = examples()
_WINDOWED = [name for name, memory in _MEMORIES.items() if memory.n_swa]
_N_SWA = max(memory.n_swa for memory in _MEMORIES.values())
_BATCH, _CONTEXT, _SHOW = "Batch", "Context", "What to show"


@dataclass(frozen=True, slots=True)
class Shown:
    """What was asked to be shown, beside the plan itself."""

    ways: bool
    svg: Path | None
    html: Path | None
    png: Path | None


def plan(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="The rows: a JSON list of objects with token, seq (an id or a list), pos, output and span, all of "
            "which may be left out; .jsonl has one object per line; - reads JSON from stdin."
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(help="Rows of each sequence: 5,5,5,1, or 32x16 for 32 sequences of 16.", rich_help_panel=_BATCH),
    ] = None,
    interleave: Annotated[
        bool, typer.Option("--interleave", help="The sequences' rows in turn.", rich_help_panel=_BATCH)
    ] = False,
    shared_prefix: Annotated[
        int, typer.Option(min=0, help="So many rows of all sequences come first.", rich_help_panel=_BATCH)
    ] = 0,
    held: Annotated[
        str | None, typer.Option(help="Cells memory already holds of each: 10,3.", rich_help_panel=_BATCH)
    ] = None,
    from_trace: Annotated[
        Path | None,
        typer.Option(help="A call that `generate --trace` recorded, on the memory of then.", rich_help_panel=_BATCH),
    ] = None,
    call: Annotated[
        int | None, typer.Option(help="Which call of --from-trace; left out, the first.", rich_help_panel=_BATCH)
    ] = None,
    memory: Annotated[str, typer.Option(help=f"{any_of(_MEMORIES)}.", rich_help_panel=_CONTEXT)] = "unified",
    strategy: Annotated[
        str | None,
        typer.Option(help=f"{any_of(STRATEGIES)}; left out, what the memory chooses.", rich_help_panel=_CONTEXT),
    ] = None,
    n_swa: Annotated[
        int,
        typer.Option(min=0, help=f"{any_of(_WINDOWED)}: positions a row sees; 0 = {_N_SWA}.", rich_help_panel=_CONTEXT),
    ] = 0,
    keep_tail: Annotated[
        int, typer.Option(min=0, help="equal: never tear the last k rows of a sequence.", rich_help_panel=_CONTEXT)
    ] = 0,
    n_ctx: Annotated[int, typer.Option(help="Cells in all; 0 = what the batch needs.", rich_help_panel=_CONTEXT)] = 0,
    n_seq_max: Annotated[
        int, typer.Option(help="Most sequences; 0 = what the batch needs.", rich_help_panel=_CONTEXT)
    ] = 0,
    n_batch: Annotated[
        int | None, typer.Option(help="Most rows of one call; left out, what fits.", rich_help_panel=_CONTEXT)
    ] = None,
    n_ubatch: Annotated[
        int | None,
        typer.Option(help=f"Most rows computed at once; left out, up to {DEFAULT_N_UBATCH}.", rich_help_panel=_CONTEXT),
    ] = None,
    show_ways: Annotated[
        bool, typer.Option("--ways", help="Each row's way: ubatch, cell, output row.", rich_help_panel=_SHOW)
    ] = False,
    cost_file: Annotated[
        Path | None,
        typer.Option("--cost", help="From `polyseq tune --out`; --compare then says how long.", rich_help_panel=_SHOW),
    ] = None,
    compared: Annotated[
        bool,
        typer.Option("--compare", help="The same batch under other cuts and schedulers.", rich_help_panel=_SHOW),
    ] = False,
    svg_file: Annotated[Path | None, typer.Option("--svg", help="Draw into a file.", rich_help_panel=_SHOW)] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write a page: picture and tables.", rich_help_panel=_SHOW)
    ] = None,
    png_file: Annotated[
        Path | None, typer.Option("--png", help="Draw into a file; needs Pillow.", rich_help_panel=_SHOW)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead.", rich_help_panel=_SHOW)
    ] = False,
) -> None:
    """Show how a batch would be cut into ubatches and placed in memory."""
    with reporting(as_json=as_json), no_warnings():
        spec = PlanSpec(
            memory=memory,
            strategy=strategy,
            n_keep_tail=keep_tail,
            n_swa=n_swa,
            n_ctx=n_ctx,
            n_seq_max=n_seq_max,
            n_batch=n_batch,
            n_ubatch=n_ubatch,
            held=() if held is None else tuple(_numbers("--held", held)),
        )
        if from_trace is None:
            if call is not None:
                raise typer.BadParameter("--call belongs to --from-trace")
            simulation = simulate(_rows(file, lengths, interleave=interleave, n_shared=shared_prefix), spec)
        else:
            if file or lengths or interleave or shared_prefix or replace(spec, n_ubatch=None) != PlanSpec():
                raise typer.BadParameter("--from-trace has rows, memory and sizes; only --n-ubatch can be another")
            simulation = _recorded(from_trace, call, n_ubatch)
        found = ways(simulation)
        settings = read_settings(cost_file)
        candidates = compare(simulation, settings.cost if settings else None) if compared else []
        shown = Shown(show_ways, svg_file, html_file, png_file)
        _write_files(simulation, found, candidates, shown)
        if as_json:
            _print_json(simulation, found, candidates)
        else:
            _print(simulation, found, candidates, shown)


# ---- rows in -------------------------------------------------------------------------------------------


def _rows(file: Path | None, lengths: str | None, *, interleave: bool, n_shared: int) -> Batch:
    if (file is None) == (lengths is None):
        raise typer.BadParameter("give the rows once: --lengths 5,5,5,1, a file or --from-trace")
    if lengths is not None:
        return rows_of_lengths(_numbers("--lengths", lengths), interleave=interleave, n_shared=n_shared)
    if interleave or n_shared:
        raise typer.BadParameter("--interleave and --shared-prefix belong to --lengths; a file says itself")
    assert file is not None
    return rows_of_text(read_text(file), by_line=file.suffix == ".jsonl")


def _recorded(file: Path, i_call: int | None, n_ubatch: int | None) -> Simulation:
    with reading(file):
        # Only here: reading traces is a sixth of what a start takes.
        recorded_plan: Callable[..., Simulation] = import_module("polyseq.explain.recorded").recorded_plan
        return recorded_plan(file, i_call, n_ubatch=n_ubatch)


def _numbers(option: str, text: str) -> list[int]:
    """'5,3x2' -> [5, 2, 2, 2]."""
    numbers: list[int] = []
    for part in text.split(","):
        times, x, n = part.strip().rpartition("x")
        if not n.isdecimal() or (x and not times.isdecimal()):
            raise typer.BadParameter(f"{option}: {part!r} is neither a number nor TIMESxNUMBER")
        numbers += [int(n)] * (int(times) if x else 1)
        if len(numbers) > MAX_SEQ:
            raise typer.BadParameter(f"{option}: more than {MAX_SEQ} sequences")
    return numbers


# ---- what leaves -----------------------------------------------------------------------------------------


def _title(simulation: Simulation) -> str:
    spec, sizes = simulation.spec, simulation.sizes
    return (
        f"{plural(simulation.n_tokens, 'token')} of {plural(len(_present(simulation)), 'sequence')}, "
        f"memory {spec.memory}, cut {spec.strategy_name}, n_ubatch {sizes.n_ubatch}"
    )


def _present(simulation: Simulation) -> set[int]:
    return {s for u in simulation.ubatches for s in u.seq_id_unq.tolist()}


def _facts(simulation: Simulation) -> list[str]:
    """Totals, then what is in effect instead of what was asked for."""
    found = spread(simulation.block_tokens.tolist())
    return [
        f"{plural(len(simulation.ubatches), 'ubatch')}; rows in each {found['min']} / {found['median']} / "
        f"{found['max']} (least / median / most); fill of n_ubatch {simulation.fill:.0%}",
        *(f"note: {note}" for note in simulation.sizes.notes),
    ]


def _print(simulation: Simulation, found: Ways, candidates: list[Candidate], shown: Shown) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    width = console.width if console.is_terminal else WIDTH
    lines = [Text(_title(simulation), style="bold"), Text()]
    lines += grid(lanes(simulation, found), width=width)
    lines += [Text(), *block_lines(blocks(simulation), n_ubatch=simulation.sizes.n_ubatch, width=width), Text()]
    lines += map(Text, _facts(simulation))
    if shown.ways:
        lines += [Text(), *map(Text, way_listing(way_runs(simulation, found)).lines())]
    if candidates:
        lines += [Text(), *map(Text, compare_listing(candidates).lines()), Text()]
        lines += [Text(f"{c.name}: {c.refusal or ABOUT[c.name]}", style="dim") for c in candidates]
    for line in lines:
        console.print(line)


def _print_json(simulation: Simulation, found: Ways, candidates: list[Candidate]) -> None:
    """One object; each ubatch, slot and column on a line of its own, so that long lists stay readable."""
    made = document(simulation, found)
    if candidates:
        made["compare"] = [candidate_document(c) for c in candidates]
    typer.echo("{\n" + ",\n".join(f"  {json.dumps(key)}: {_json(value)}" for key, value in made.items()) + "\n}")


def _json(value: Any) -> str:
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "\n  }"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"    {json.dumps(v)}" for v in value) + "\n  ]"
    return json.dumps(value)


def _write_files(simulation: Simulation, found: Ways, candidates: list[Candidate], shown: Shown) -> None:
    """Changes the file system where asked."""
    if not (shown.svg or shown.html or shown.png):
        return
    title = _title(simulation)
    drawn = scene(simulation, found, title=title)
    with writing():
        if shown.svg:
            shown.svg.write_text(svg(drawn), encoding="utf-8")
        if shown.html:
            listings = [("Ubatches", block_listing(blocks(simulation), simulation.sizes.n_ubatch))]
            if candidates:
                listings.append(("The same batch, otherwise", compare_listing(candidates)))
            listings.append(("Each row's way", way_listing(way_runs(simulation, found))))
            shown.html.write_text(page(title, _facts(simulation), scene(simulation, found), listings), encoding="utf-8")
        if shown.png:
            write_png(drawn, shown.png)
