"""`polyseq rerank`: the lines of a file, best answer to a query first.

Enters: a cross-encoder, a query and a file. Leaves: a table on stdout, or one JSON object.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from polyseq.batch.seqset import MAX_SEQ
from polyseq.cli.options import LIMITS, TooLongOption
from polyseq.cli.progress import counting, resolve_model, waiting
from polyseq.cli.reporting import EXIT_FAILED, notes_of_warnings, print_json, reporting
from polyseq.cli.text import one_line, stdout_console
from polyseq.cli.texts import read_texts
from polyseq.embeddings import TextsRefused
from polyseq.embeddings import rerank as rerank_texts
from polyseq.model import Model


def rerank(
    model: Annotated[str, typer.Argument(help="A cross-encoder: a folder, a GGUF file, a known name or a hub id.")],
    file: Annotated[Path, typer.Argument(help="One text per line, or JSON lines (.jsonl); - reads stdin.")],
    query: Annotated[str, typer.Option("-q", "--query", help="What the texts should answer.")],
    top: Annotated[int | None, typer.Option(min=1, help="Show only the best so many.")] = None,
    too_long: Annotated[
        TooLongOption, typer.Option(help="What becomes of a text that does not fit beside the query.")
    ] = TooLongOption.TRUNCATE,
    n_batch: Annotated[int | None, typer.Option(min=1, help="Most tokens of one call.", rich_help_panel=LIMITS)] = None,
    n_ubatch: Annotated[
        int | None,
        typer.Option(min=1, help="Most tokens computed at once; a longer text raises it.", rich_help_panel=LIMITS),
    ] = None,
    n_seq_max: Annotated[
        int, typer.Option(min=1, max=MAX_SEQ, help="Most texts of one call.", rich_help_panel=LIMITS)
    ] = MAX_SEQ,
    backend: Annotated[str, typer.Option(help="Who computes.", rich_help_panel=LIMITS)] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    no_fetch: Annotated[bool, typer.Option("--no-fetch", help="Use only what is on this machine.")] = False,
) -> None:
    """Rank the lines of a file by how well they answer a query."""
    with reporting(as_json=as_json):
        texts = read_texts(file)
        path = resolve_model(model, fetch=not no_fetch)
        with waiting(f"loading {path.name}"):
            loaded = Model.load(path)
        refused: dict[int, str] = {}
        with counting("scoring") as progress, notes_of_warnings() as notes:
            try:
                scores = rerank_texts(
                    query,
                    texts,
                    model=loaded,
                    too_long=too_long.value,
                    n_batch=n_batch,
                    n_ubatch=n_ubatch,
                    n_seq_max=n_seq_max,
                    backend=backend,
                    progress=progress,
                )
            except TextsRefused as error:
                scores, refused = error.rows, {r.index: r.reason for r in error.refused}
        best = [i for i in np.argsort(-scores, kind="stable").tolist() if i not in refused][:top]
        if as_json:
            ranked = [{"index": i, "score": float(scores[i]), "text": texts[i]} for i in best]
            lost = [{"index": i, "reason": reason} for i, reason in refused.items()]
            print_json({"model": loaded.name, "query": query, "ranked": ranked, "refused": lost, "notes": notes})
        else:
            table = Table(box=None, padding=(0, 2, 0, 0))
            for title in ("score", "text", ""):
                table.add_column(title, justify="left" if title == "" else "right")
            for i in best:
                table.add_row(f"{scores[i]:.4f}", str(i), one_line(texts[i], 100))
            stdout_console().print(table)
            for note in notes:
                typer.echo(f"note        {note}", err=True)
            for i, reason in refused.items():
                typer.echo(f"refused     text {i}: {reason}", err=True)
        if refused:
            raise typer.Exit(EXIT_FAILED)
