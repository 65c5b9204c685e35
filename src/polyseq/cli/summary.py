"""What a run of `generate` cost and how it was set up, for people and for programs.

Enters: a job, its answers and the engine's counts after the run. Leaves: a few lines, or one JSON object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from polyseq.cli.answers import Answer
from polyseq.cli.cut import Cut
from polyseq.cli.job import Job
from polyseq.cli.text import plural
from polyseq.context import Context
from polyseq.engine import EngineStats


def summary_lines(stats: EngineStats, ctx: Context) -> list[str]:
    """Pure. Speed, work and notes, one line each."""
    shared = stats.n_prompt_tokens - stats.n_prompt_rows
    computed = f"{stats.n_prompt_rows} computed, {shared} shared" if shared > 0 else "all computed"
    lines = [
        f"prompt      {plural(stats.n_prompt_tokens, 'token')} ({computed}), {stats.prompt_per_s:.1f} tokens/s",
        f"generation  {plural(stats.n_sampled, 'token')}, {stats.gen_per_s:.1f} tokens/s",
        f"work        {plural(stats.n_decode, 'decode call')}, {plural(stats.n_ubatches, 'ubatch')}, "
        f"plans reused {stats.plan_hits}, built {stats.plan_misses}",
    ]
    if stats.n_refused:
        lines.append(f"memory      {plural(stats.n_refused, 'batch')} refused for want of cells, then cut down")
    return lines + [f"note        {note}" for note in ctx.notes]


def summary_json(
    job: Job, stats: EngineStats, answers: Sequence[Answer], cut: Cut | None, *, interrupted: bool
) -> dict[str, object]:
    """Pure. Everything `--json` prints."""
    found: dict[str, object] = {
        "model": {"name": job.model.name, "path": str(job.model.path), "n_params": job.model.n_params},
        "settings": _settings(job),
        "effective": job.config.to_json()["settings"],
        "notes": list(job.ctx.notes),
        "answers": [answer.as_json() for answer in answers],
        "stats": {
            **asdict(stats),
            "prompt_tokens_per_s": round(stats.prompt_per_s, 2),
            "gen_tokens_per_s": round(stats.gen_per_s, 2),
        },
        "interrupted": interrupted,
    }
    return found if cut is None else {**found, "cut": cut.as_json()}


def _settings(job: Job) -> dict[str, object]:
    ctx, sampling = job.ctx, asdict(job.params)
    del sampling["seed"]  # each answer names its own
    return {
        "n_ctx": ctx.n_ctx,
        "n_ctx_seq": ctx.n_ctx_seq,
        "n_batch": ctx.n_batch,
        "n_ubatch": ctx.n_ubatch,
        "n_seq_max": ctx.n_seq_max,
        "unified": ctx.unified,
        "backend": ctx.backend,
        "max_tokens": job.max_tokens,
        "chat": job.chat,
        "sampling": sampling,
    }
