"""`polyseq rerank`: the lines of a file, best answer to a query first.

Enters: a cross-encoder, a query and a file. Leaves: a table on stdout, or one JSON object.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from polyseq.batch.seqset import MAX_SEQ
from polyseq.cli.bars import counting
from polyseq.cli.options import (
    AsJson,
    Backend,
    KvType,
    NoFetch,
    NThreads,
    TextFile,
    TextsNBatch,
    TextsNSeqMax,
    TextsNUbatch,
    TooLongOption,
)
from polyseq.cli.progress import resolve_model, waiting
from polyseq.cli.reporting import EXIT_FAILED, notes_of_warnings, print_json, reporting
from polyseq.cli.tables import stdout_console
from polyseq.cli.text import one_line
from polyseq.cli.texts import read_texts
from polyseq.embeddings import TextsRefused
from polyseq.embeddings import rerank as rerank_texts
from polyseq.model import Model


def rerank(
    model: Annotated[str, typer.Argument(help="A cross-encoder: a folder, a GGUF file, a known name or a hub id.")],
    file: TextFile,
    query: Annotated[str, typer.Option("-q", "--query", help="What the texts should answer.")],
    top: Annotated[int | None, typer.Option(min=1, help="Show only the best so many.")] = None,
    too_long: Annotated[
        TooLongOption, typer.Option(help="What becomes of a text that does not fit beside the query.")
    ] = TooLongOption.TRUNCATE,
    n_batch: TextsNBatch = None,
    n_ubatch: TextsNUbatch = None,
    n_seq_max: TextsNSeqMax = MAX_SEQ,
    backend: Backend = None,
    n_threads: NThreads = None,
    kv_type: KvType = None,
    as_json: AsJson = False,
    no_fetch: NoFetch = False,
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
                    backend=backend or "auto",
                    n_threads=n_threads,
                    kv_type=kv_type,
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
            for title in ("score", "index", "text"):
                table.add_column(title, justify="left" if title == "text" else "right")
            for i in best:
                table.add_row(f"{scores[i]:.4f}", str(i), one_line(texts[i], 100))
            stdout_console().print(table)
            for note in notes:
                typer.echo(f"note        {note}", err=True)
            for i, reason in refused.items():
                typer.echo(f"refused     text {i}: {reason}", err=True)
        if refused:
            raise typer.Exit(EXIT_FAILED)
