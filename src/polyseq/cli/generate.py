"""`polyseq generate`: answer all prompts at once.

Enters: a model, prompts, sampling and context options. Leaves: answers on stdout as they come, then on stderr
what it cost; with `--json` one object on stdout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyseq.cli.job import Job, needed_cells, tracing
from polyseq.cli.options import AsJson, Backend, KvType, ModelName, NoFetch, NThreads, SettingsFile
from polyseq.cli.progress import resolve_model, waiting, warm_up
from polyseq.cli.prompts import encode_prompts, read_prompts
from polyseq.cli.reporting import no_warnings, reporting
from polyseq.cli.run import run_job
from polyseq.cli.settings import chosen, machine_facts, read_settings
from polyseq.context import Context
from polyseq.context_sizes import DEFAULT_N_BATCH, DEFAULT_N_UBATCH
from polyseq.explain.effective import Asked, effective
from polyseq.model import Model
from polyseq.sampling import SamplingParams

DEFAULT_N_SEQ_MAX = 32

_SAMPLING = "Sampling"
_CONTEXT = "Context"


def generate(
    model: ModelName,
    prompt: Annotated[list[str] | None, typer.Option("-p", "--prompt", help="A prompt; repeat for more.")] = None,
    file: Annotated[Path | None, typer.Option(help="One prompt per line; - reads stdin.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put each prompt into the model's chat template.")] = False,
    system: Annotated[str | None, typer.Option(help="System text of the chat, the same for all.")] = None,
    max_tokens: Annotated[
        int, typer.Option("-n", "--max-tokens", help="Most tokens per answer; -1 = until it stops by itself.")
    ] = 128,
    temp: Annotated[float, typer.Option(help="Temperature; 0 = greedy.", rich_help_panel=_SAMPLING)] = 0.8,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest; 0 = off.", rich_help_panel=_SAMPLING)] = 40,
    top_p: Annotated[float, typer.Option(help="Keep probability p; 1 = off.", rich_help_panel=_SAMPLING)] = 0.95,
    min_p: Annotated[
        float, typer.Option(help="Keep p times the likeliest; 0 = off.", rich_help_panel=_SAMPLING)
    ] = 0.05,
    repeat_penalty: Annotated[float, typer.Option(help="1 = off.", rich_help_panel=_SAMPLING)] = 1.0,
    frequency_penalty: Annotated[float, typer.Option(help="0 = off.", rich_help_panel=_SAMPLING)] = 0.0,
    presence_penalty: Annotated[float, typer.Option(help="0 = off.", rich_help_panel=_SAMPLING)] = 0.0,
    penalty_last_n: Annotated[
        int, typer.Option(help="Tokens the penalties look back on; -1 = all.", rich_help_panel=_SAMPLING)
    ] = 64,
    seed: Annotated[
        int | None,
        typer.Option(
            help="The same for every prompt, so an answer is the same alone or in company; "
            "left out, each prompt gets one of its own.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
    n_ctx: Annotated[
        int | None,
        typer.Option(
            help="Cells of the KV cache; 0 = what the model was trained with; left out, what is needed.",
            rich_help_panel=_CONTEXT,
        ),
    ] = None,
    n_batch: Annotated[
        int | None,
        typer.Option(
            help=f"Most rows of one decode call; left out, up to {DEFAULT_N_BATCH}.", rich_help_panel=_CONTEXT
        ),
    ] = None,
    n_ubatch: Annotated[
        int | None,
        typer.Option(help=f"Most rows computed at once; left out, up to {DEFAULT_N_UBATCH}.", rich_help_panel=_CONTEXT),
    ] = None,
    n_seq_max: Annotated[
        int | None,
        typer.Option(
            min=0, help=f"Most prompts in work at once; 0 = all, up to {DEFAULT_N_SEQ_MAX}.", rich_help_panel=_CONTEXT
        ),
    ] = None,
    unified: Annotated[
        bool | None,
        typer.Option(
            "--unified/--streams",
            help="One cache for all sequences, or one for each; left out, unified.",
            rich_help_panel=_CONTEXT,
        ),
    ] = None,
    backend: Backend = None,
    n_threads: NThreads = None,
    kv_type: KvType = None,
    settings_file: SettingsFile = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print what each context setting became, and why.")
    ] = False,
    show_cut: Annotated[bool, typer.Option("--show-cut", help="Draw how the first batch was cut.")] = False,
    trace_file: Annotated[
        Path | None, typer.Option("--trace", help="Record every step into a file; see `polyseq trace`.")
    ] = None,
    as_json: AsJson = False,
    no_fetch: NoFetch = False,
) -> None:
    """Answer all prompts at once."""
    with reporting(as_json=as_json), no_warnings(), tracing(trace_file) as sink:
        params = SamplingParams(
            temperature=temp,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repeat_penalty=repeat_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            penalty_last_n=penalty_last_n,
            seed=seed,
        )
        limit = _max_tokens(max_tokens)
        if system is not None and not chat:
            raise typer.BadParameter("--system needs --chat")
        texts = read_prompts(prompt or [], file)
        tuned = read_settings(settings_file)
        asked = Asked(
            n_ctx,
            n_seq_max,
            n_batch,
            n_ubatch,
            unified,
            backend,
            n_threads,
            kv_type,
            str(settings_file) if settings_file else None,
        )
        in_one = chosen(unified, tuned.unified if tuned else None, True)
        path = resolve_model(model, fetch=not no_fetch)
        n_seqs = chosen(n_seq_max, tuned.n_seq_max if tuned else None, 0) or min(len(texts), DEFAULT_N_SEQ_MAX)
        n_cells = chosen(n_ctx, tuned.n_ctx if tuned else None, None)
        with waiting(f"loading {path.name}") as compiling:
            loaded = Model.load(path)
            tokens = encode_prompts(loaded, texts, chat=chat, system=system)
            ctx = Context(
                loaded,
                n_ctx=needed_cells(tokens, limit, n_seqs, unified=in_one) if n_cells is None else n_cells,
                n_seq_max=n_seqs,
                n_batch=chosen(n_batch, tuned.n_batch if tuned else None, None),
                n_ubatch=chosen(n_ubatch, tuned.n_ubatch if tuned else None, None),
                unified=in_one,
                backend=chosen(backend, tuned.backend if tuned else None, "auto"),
                n_threads=chosen(n_threads, tuned.n_threads if tuned else None, None),
                kv_type=chosen(kv_type, tuned.kv_type if tuned else None, None),
                progress=compiling,
                trace=sink,
            )
            warm_up(ctx)
        if sink is not None:
            sink.start()
        if tuned is not None and not as_json:
            for note in tuned.differs_from(machine_facts()):
                typer.echo(f"note        {note}", err=True)
        config = effective(ctx, asked)
        if not as_json:  # which has the settings in its object
            for line in config.lines() if show_config else [f"context     {config.line()}"]:
                typer.echo(line, err=True)
        job = Job(loaded, ctx, texts, tokens, params, limit, chat, config)
        code = run_job(job, show_cut=show_cut, as_json=as_json)
        if code:
            raise typer.Exit(code)


def _max_tokens(n: int) -> int | None:
    if n == 0 or n < -1:
        raise typer.BadParameter(f"-n {n} is neither a number of tokens (1 or more) nor -1")
    return None if n < 0 else n
