"""`polyseq pull`: fetch a model into the cache, or say which are known.

Enters: a known name or a hub id. Leaves: the path on stdout.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from polyseq.cli.options import AsJson
from polyseq.cli.progress import resolve_model
from polyseq.cli.reporting import print_json, reporting
from polyseq.cli.tables import stdout_console
from polyseq.cli.text import human_bytes
from polyseq.weights.sources import KNOWN, cached


def pull(
    name: Annotated[
        str | None, typer.Argument(help="A known name or a hub id (org/repo:file.gguf); left out, lists what is known.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a model into the cache and print its path."""
    with reporting(as_json=as_json):
        if name is None:
            _list_known(as_json=as_json)
            return
        path = resolve_model(name, fetch=True).resolve()
        if as_json:
            print_json({"name": name, "path": str(path), "n_bytes": path.stat().st_size if path.is_file() else None})
        else:
            typer.echo(str(path))


def _list_known(*, as_json: bool) -> None:
    if as_json:
        known = [
            {
                "name": source.name,
                "about": source.about,
                "licence": source.licence,
                "n_bytes": source.n_bytes,
                "path": None if (place := cached(source.name)) is None else str(place),
            }
            for source in KNOWN.values()
        ]
        print_json({"known": known})
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("name", "size", "licence", "what", "in the cache"):
        table.add_column(title, justify="right" if title == "size" else "left")
    for source in KNOWN.values():
        here = "yes" if cached(source.name) else "no"
        table.add_row(source.name, human_bytes(source.n_bytes), source.licence, source.about, here)
    stdout_console().print(table)
