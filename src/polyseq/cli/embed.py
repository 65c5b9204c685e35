"""`polyseq embed`: a vector for every line of a file.

Enters: a model and a file. Leaves: JSON lines on stdout or a file; on stderr a bar and what it took. A line that is
refused costs none of the others, and the exit code tells.
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from polyseq.batch.seqset import MAX_SEQ
from polyseq.cli.bars import counting
from polyseq.cli.options import (
    AsJson,
    Backend,
    KvType,
    NoFetch,
    NThreads,
    Pooled,
    TextFile,
    TextsNBatch,
    TextsNSeqMax,
    TextsNUbatch,
    TooLongOption,
)
from polyseq.cli.progress import resolve_model, waiting
from polyseq.cli.reporting import EXIT_FAILED, notes_of_warnings, print_json, reporting
from polyseq.cli.text import plural
from polyseq.cli.texts import read_texts
from polyseq.cli.vectors import check_out, write_lines, write_vectors
from polyseq.embeddings import Embedded, Embedder
from polyseq.model import Model


def embed(
    model: Annotated[str, typer.Argument(help="A folder, a GGUF file, a known name (see `polyseq pull`) or a hub id.")],
    file: TextFile,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="A .npy, .jsonl or .parquet file; left out, lines on stdout.")
    ] = None,
    pooling: Annotated[
        Pooled | None, typer.Option(help="How a text becomes one vector; left out, what the model's file says.")
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize/--raw", help="Vectors of length 1, or as computed.")] = True,
    too_long: Annotated[
        TooLongOption, typer.Option(help="What becomes of a text above the model's maximum.")
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
    """Turn every line of a file into a vector."""
    with reporting(as_json=as_json):
        check_out(out)
        texts = read_texts(file)
        path = resolve_model(model, fetch=not no_fetch)
        with waiting(f"loading {path.name}"):
            embedder = Embedder(
                Model.load(path),
                pooling=None if pooling is None else pooling.value,
                normalize=normalize,
                n_batch=n_batch,
                n_ubatch=n_ubatch,
                n_seq_max=n_seq_max,
                backend=backend or "auto",
                n_threads=n_threads,
                kv_type=kv_type,
            )
        with counting("embedding") as progress, notes_of_warnings() as notes:
            started = perf_counter()
            done = embedder.run(texts, too_long=too_long.value, progress=progress)
            seconds = perf_counter() - started
        if out is not None:
            write_vectors(done, out)
        if as_json:
            print_json(_told(embedder, done, seconds, notes, out))
        else:
            if out is None:
                write_lines(done, sys.stdout)
            _summary(embedder, done, seconds, notes)
        if done.refused:
            raise typer.Exit(EXIT_FAILED)


def _told(embedder: Embedder, done: Embedded, seconds: float, notes: list[str], out: Path | None) -> dict[str, Any]:
    refused = [{"index": r.index, "reason": r.reason} for r in done.refused]
    lost = {r.index for r in done.refused}
    rows = [None if i in lost else row.tolist() for i, row in enumerate(done.rows)]
    return {
        "model": embedder.model.name,
        "pooling": embedder.pooling,
        "normalized": embedder.normalize,
        "n_texts": len(done.rows),
        "n_embd": done.rows.shape[1],
        "n_tokens": done.n_tokens,
        "seconds": seconds,
        "refused": refused,
        "truncated": list(done.truncated),
        "notes": notes,
        **({"embeddings": rows} if out is None else {"out": str(out)}),
    }


def _summary(embedder: Embedder, done: Embedded, seconds: float, notes: list[str]) -> None:
    for note in notes:
        typer.echo(f"note        {note}", err=True)
    for r in done.refused:
        typer.echo(f"refused     text {r.index}: {r.reason}", err=True)
    n = len(done.rows) - len(done.refused)
    typer.echo(
        f"embedded    {plural(n, 'text')} of {plural(done.n_tokens, 'token')}, {done.rows.shape[1]} wide, pooling "
        f"{embedder.pooling}, in {seconds:.2f} s ({n / seconds:.0f} texts/s)",
        err=True,
    )
