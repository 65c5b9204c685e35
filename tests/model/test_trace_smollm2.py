"""A trace of the demo: tokens, cells and times are all accounted for, where a step takes milliseconds too."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import pytest

from polyseq import Context, Model
from polyseq.cli.prompts import encode_prompts
from polyseq.engine import start
from polyseq.explain.replay import memory_before
from polyseq.explain.timeline import timeline
from polyseq.explain.trace_summary import summarise
from polyseq.sampling import SamplingParams
from polyseq.trace import TraceFile, read_trace

pytestmark = pytest.mark.model

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(("backend", "n"), [("cpu", 48), ("reference", 4)])
def test_the_demo_is_accounted_for(smollm2_path: Path, tmp_path: Path, backend: str, n: int) -> None:
    model = Model.load(str(smollm2_path))
    questions = (EXAMPLES / "questions.txt").read_text().splitlines()
    prompts = encode_prompts(model, questions, chat=True, system=(EXAMPLES / "system.txt").read_text().strip())
    n_ctx = 1024
    path = tmp_path / "demo.jsonl"
    with TraceFile(path) as file:
        ctx = Context(model, n_ctx=n_ctx, n_seq_max=len(prompts), unified=True, backend=backend, trace=file)
        engine = start(ctx, model, prompts, params=SamplingParams(temperature=0.0), max_tokens=n)
        halfway = None
        began = perf_counter()
        while not engine.finished:
            engine.step()
            if ctx.stats.n_decode == n // 2:
                halfway = ctx.memory.columns()
        wall = perf_counter() - began
        stats, ended = ctx.stats, ctx.memory.columns()
        engine.close()
    found = timeline(read_trace(path))
    summary = summarise(found)
    assert summary.tokens_in == summary.tokens_out == stats.n_tokens
    assert summary.n_outputs == engine.stats.n_sampled
    assert summary.n_ubatches == stats.n_ubatches and summary.n_calls == {"ok": stats.n_decode}
    assert memory_before(found, 10**9).cells.columns() == ended
    assert memory_before(found, n // 2).cells.columns() == halfway
    # Steps that have a name are the calls, and with the time between calls they are what a clock outside shows.
    named = sum(seconds for step, seconds in summary.steps_s.items() if step != "rest")
    assert named == pytest.approx(summary.calls_s, rel=0.05)
    assert named + summary.between_s == pytest.approx(wall, rel=0.05)
