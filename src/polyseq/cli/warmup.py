"""`polyseq warmup`: compile now what a model needs, so that an image or a first user does not wait for it.

Enters: a model. Leaves: kernels in the cache directory, and on stdout how many there are (`--json`: one object).
"""

from __future__ import annotations

import time

import typer

from polyseq.cli.options import AsJson, Backend, KvType, ModelName, NoFetch, NThreads
from polyseq.cli.progress import resolve_model, waiting, warm_up
from polyseq.cli.reporting import no_warnings, print_json, reporting
from polyseq.context import Context
from polyseq.model import Model


def warmup(
    model: ModelName,
    backend: Backend = None,
    n_threads: NThreads = None,
    kv_type: KvType = None,
    as_json: AsJson = False,
    no_fetch: NoFetch = False,
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

            ctx = Context(
                Model.load(path),
                n_ctx=64,
                backend=backend or "auto",
                n_threads=n_threads,
                kv_type=kv_type,
                progress=progress,
            )
            warm_up(ctx)
        seconds = time.perf_counter() - start
        if as_json:
            print_json({"backend": ctx.backend, "compiled": compiled, "seconds": round(seconds, 3)})
        elif compiled:
            typer.echo(f"{ctx.backend}: {len(compiled)} kernels compiled and kept, {seconds:.1f} s")
        else:
            typer.echo(f"{ctx.backend}: nothing to compile, {seconds:.1f} s")
