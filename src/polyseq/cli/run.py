"""Runs a job: answers shown as they come, then what it cost.

Enters: a `Job`. Leaves: text or one JSON object, and an exit code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module

import typer

from polyseq.batch import Batch
from polyseq.cli.answers import Answer, choose_view
from polyseq.cli.cut import Cut, cut_of
from polyseq.cli.job import Job
from polyseq.cli.reporting import EXIT_FAILED, EXIT_INTERRUPTED, print_json
from polyseq.cli.summary import summary_json, summary_lines
from polyseq.engine import Engine, EngineStats, Token, start
from polyseq.sampling import fresh_seed


def run_job(job: Job, *, show_cut: bool, as_json: bool) -> int:
    """Changes the job's context while it runs. The exit code: 0, 1 if a prompt could not be run, 130 if interrupted."""
    seeds = [fresh_seed() if job.params.seed is None else job.params.seed for _ in job.prompts]
    answers = [
        Answer(i, prompt, seed, len(tokens))
        for i, (prompt, seed, tokens) in enumerate(zip(job.prompts, seeds, job.tokens, strict=True))
    ]
    cuts: list[Cut] = []

    def watch(batch: Batch) -> None:
        if show_cut and not cuts:
            cuts.append(cut_of(job.ctx.plan(batch).ubatches))

    params = [replace(job.params, seed=seed) for seed in seeds]
    engine = start(job.ctx, job.model, job.tokens, params=params, max_tokens=job.max_tokens, watch=watch)
    interrupted = _show_answers(engine, answers, as_json=as_json)
    cut = cuts[0] if cuts else None
    if as_json:
        print_json(summary_json(job, engine.stats, answers, cut, interrupted=interrupted))
    else:
        _print_summary(job, engine.stats, cut, interrupted=interrupted)
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if any(answer.reason == "error" for answer in answers) else 0


def _show_answers(engine: Engine, answers: Sequence[Answer], *, as_json: bool) -> bool:
    """Changes the answers as they grow, showing them. Whether it was interrupted."""
    with choose_view(answers, as_json=as_json) as view:
        try:
            for event in engine.run():
                answer = answers[event.i_prompt]
                answer.pieces.append(event.text)
                view.grew(answer, event.text)
                if isinstance(event, Token):
                    answer.n_tokens += 1
                else:
                    answer.reason, answer.message = event.reason, event.message
                    view.ended(answer)
        except KeyboardInterrupt:
            for answer in answers:
                if not answer.reason:
                    answer.reason = "interrupted"
                    view.ended(answer)
            return True
    return False


def _print_summary(job: Job, stats: EngineStats, cut: Cut | None, *, interrupted: bool) -> None:
    if interrupted:
        typer.echo("interrupted; what was done so far:", err=True)
    if cut is not None:
        import_module("polyseq.cli.cut_table").print_cut(cut)  # only here: it takes `rich`
    typer.echo(err=True)
    for line in summary_lines(stats, job.ctx):
        typer.echo(line, err=True)
