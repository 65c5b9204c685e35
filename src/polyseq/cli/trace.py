"""`polyseq trace`: what a recorded trace says.

Enters: a file that `generate --trace` or a `TraceFile` wrote. Leaves: a summary on stdout, or one JSON object; a page
and an export for ui.perfetto.dev where asked. Needs no model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from polyseq.cli.files import reading, writing
from polyseq.cli.options import AsJson
from polyseq.cli.reporting import print_json, reporting
from polyseq.cli.text import printable
from polyseq.explain.perfetto import perfetto
from polyseq.explain.timeline import Timeline, timeline
from polyseq.explain.trace_page import trace_page
from polyseq.explain.trace_summary import summarise
from polyseq.trace import read_trace


def trace(
    file: Annotated[Path, typer.Argument(help="What `polyseq generate --trace FILE` wrote; it may still grow.")],
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write one page: time, cells, sequences, shapes.")
    ] = None,
    perfetto_file: Annotated[
        Path | None, typer.Option("--perfetto", help="Write Chrome's trace event format, for ui.perfetto.dev.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Sum up a recorded trace."""
    with reporting(as_json=as_json):
        found = load(file)
        summary = summarise(found)
        with writing():
            if html_file is not None:
                html_file.write_text(trace_page(found, summary), encoding="utf-8")
            if perfetto_file is not None:
                perfetto_file.write_text(json.dumps(perfetto(found)), encoding="utf-8")
        if as_json:
            print_json(summary.to_json())
        else:
            for line in summary.lines():
                typer.echo(printable(line))


def load(file: Path) -> Timeline:
    """Pure. The trace in a file. Raises `typer.BadParameter`, `BadColumn`."""
    with reading(file):
        return timeline(read_trace(file))
