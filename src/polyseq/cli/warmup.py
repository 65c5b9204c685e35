"""`polyseq warmup`: compile now what a model needs, so that an image or a first user does not wait for it.

Enters: a model. Leaves: kernels in the cache directory, and on stdout how many there are (`--json`: one object).
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from polyseq.cli.progress import resolve_model, waiting, warm_up
from polyseq.cli.reporting import no_warnings, print_json, reporting
from polyseq.context import Context
from polyseq.model import Model


def warmup(
    model: Annotated[str, typer.Argument(help="A GGUF file, a known name (see `polyseq pull`) or a hub id.")],
    backend: Annotated[str, typer.Option(help="Who is to compute.")] = "auto",
    kv_type: Annotated[str | None, typer.Option(help="How the cache is to keep numbers: bf16 or int8.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    no_fetch: Annotated[bool, typer.Option("--no-fetch", help="Use only what is on this machine.")] = False,
) -> None:
    """Compile what a model needs, once, and keep it for the next start."""
    with reporting(as_json=as_json), no_warnings():
        path = resolve_model(model, fetch=not no_fetch)
        compiled: list[str] = []
        start = time.perf_counter()
        with waiting(f"loading {path.name}") as compiling:

            def progress(kernel: str) -> None:
                compiled.append(kernel)
                compiling(kernel)

            ctx = Context(Model.load(path), n_ctx=64, backend=backend, kv_type=kv_type, progress=progress)
            warm_up(ctx)
        seconds = time.perf_counter() - start
        if as_json:
            print_json({"backend": ctx.backend, "compiled": compiled, "seconds": round(seconds, 3)})
        elif compiled:
            typer.echo(f"{ctx.backend}: {len(compiled)} kernels compiled and kept, {seconds:.1f} s")
        else:
            typer.echo(f"{ctx.backend}: nothing to compile, {seconds:.1f} s")
