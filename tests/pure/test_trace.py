"""A trace reconciled with what it traces: tokens, cells, times, failures; then read back, exported, drawn."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from time import perf_counter, perf_counter_ns, sleep
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyseq import Batch, Context, Model, NoSlot
from polyseq import errors as e
from polyseq.engine import Token, start
from polyseq.explain.perfetto import perfetto
from polyseq.explain.replay import memory_before, replay, simulate_recorded
from polyseq.explain.timeline import Timeline, decode_rows, timeline
from polyseq.explain.trace_page import page_data, trace_page
from polyseq.explain.trace_summary import STEPS, summarise
from polyseq.memory import KvCache
from polyseq.sampling import SamplingParams
from polyseq.trace import Checked, Computed, Ended, Event, Operation, Refused, TraceFile, read_trace
from polyseq.trace import file as trace_file
from tiny import tiny_llama
from tiny_gguf import write_tiny_gguf
from tiny_kinds import tiny_gemma3, tiny_lfm2, tiny_mamba

TINY = tiny_llama()
MODEL = Model(TINY.architecture, TINY.weights, TINY.metadata)
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
PROMPTS = [np.arange(5 + 4 * i, dtype=np.int32) + 40 * (i > 2) for i in range(5)]


class Kept:
    """A sink that keeps events, and can do something at one."""

    def __init__(self, at: type[Any] | None = None, do: Any = None) -> None:
        self.events: list[Event] = []
        self.at, self.do = at, do

    def record(self, event: Event, /) -> None:
        self.events.append(event)
        if self.at is not None and isinstance(event, self.at):
            self.do()

    @property
    def timeline(self) -> Timeline:
        return timeline(self.events)

    @property
    def ended(self) -> Ended:
        assert isinstance(self.events[-1], Ended)
        return self.events[-1]


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model.load(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "endless.gguf", with_eos=False))


def context(sink: Kept | TraceFile | None, model: Model = MODEL, **sizes: Any) -> Context:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", e.PolyseqWarning)
        return Context(model, **{"n_ctx": 96, "n_seq_max": 3, **sizes}, trace=sink)


def rows(tokens: Any, **how: Any) -> Batch:
    batch = Batch()
    batch.extend(tokens, **{"output": True, **how})
    return batch


def last_cells(found: Timeline) -> KvCache:
    return memory_before(found, 10**9)


# ---- a whole run, reconciled -----------------------------------------------------------------------------


@pytest.mark.usefixtures("on_each_backend")
@pytest.mark.parametrize("unified", [True, False])
def test_an_engine_run_reconciles(endless: Model, tmp_path: Path, unified: bool) -> None:
    path = tmp_path / "t.jsonl"
    with TraceFile(path) as file:
        ctx = context(file, endless, n_ctx=96 if unified else 150, unified=unified, n_batch=24, n_ubatch=8)
        engine = start(ctx, endless, PROMPTS, params=SamplingParams(seed=1), max_tokens=9)
        began, n_drawn, middles = perf_counter(), 0, 0
        while not engine.finished:
            n_drawn += sum(isinstance(event, Token) for event in engine.step())
            if ctx.stats.n_decode % 7 == 3:  # the file is read while it grows
                file.flush()
                assert last_cells(timeline(read_trace(path))).cells.columns() == ctx.memory.columns()
                middles += ctx.memory.n_used > 0
        engine.close()
        wall = perf_counter() - began
    found = timeline(read_trace(path))
    summary = summarise(found)
    assert summary.n_calls["ok"] == ctx.stats.n_decode == sum(c.ok for c in found.calls)
    assert (
        summary.tokens_in == summary.tokens_out == ctx.stats.n_tokens == summary.prefill_tokens + summary.decode_tokens
    )
    assert summary.decode_tokens == engine.stats.n_gen_rows
    assert summary.n_ubatches == sum(summary.shapes.values()) == ctx.stats.n_ubatches
    assert (summary.plan_hits, sum(summary.plan_misses.values())) == (ctx.stats.plan_hits, ctx.stats.plan_misses)
    assert summary.plan_misses == ctx.stats.plan_miss_reasons
    assert n_drawn == 9 * len(PROMPTS) and middles
    assert last_cells(found).cells.columns() == ctx.memory.columns()
    # A call's steps add up to it but for 5 % or 0.3 ms; the median, since any one call may lose its core in between.
    rests = []
    for call in found.calls:
        assert call.ended is not None
        rest = summarise(Timeline(found.opened, (call,), found.events)).steps_s["rest"]
        assert 0 <= rest < call.ended.ns / 1e9
        rests.append(rest / max(0.05 * call.ended.ns / 1e9, 3e-4))
    assert np.median(rests) <= 1
    assert tuple(summary.steps_s) == STEPS and sum(summary.steps_s.values()) == pytest.approx(summary.calls_s)
    assert summary.calls_s + summary.between_s == pytest.approx(summary.wall_s) and summary.wall_s <= wall


def test_a_trace_changes_no_answer(endless: Model) -> None:
    def answer(sink: Kept | None) -> list[tuple[int, int]]:
        ctx = context(sink, endless, unified=True)
        engine = start(ctx, endless, PROMPTS, params=SamplingParams(seed=3), max_tokens=6)
        return [(event.i_prompt, event.token) for event in engine.run() if isinstance(event, Token)]

    assert answer(None) == answer(Kept())


def test_plan_misses_have_reasons() -> None:
    sink = Kept()
    ctx = context(sink, n_ubatch=4)
    ctx.decode(rows([1, 2], output=False))
    ctx.decode(rows([3, 4, 5, 6, 7]))
    ctx.decode(rows([8]))
    found = [c.plan_miss for c in sink.events if isinstance(c, Computed)]
    assert found == ["first plan", "logits: False -> True", "", ""]
    assert summarise(sink.timeline).plan_misses == {"first plan": 1, "logits: False -> True": 1}


# ---- cells -----------------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.sampled_from(["decode"] * 4 + ["rm", "cp", "keep", "add", "div", "clear"]),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(-1, 6),
        st.integers(-3, 4),
    ),
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(steps, st.booleans(), st.integers(1, 5))
def test_any_history_can_be_played_again(
    history: list[tuple[str, int, int, int, int]], one: bool, n_ubatch: int
) -> None:
    sink = Kept()
    ctx = context(sink, n_ctx=24 if one else 36, unified=one, n_ubatch=n_ubatch)
    for name, a, b, p, n in history:
        memory = ctx.memory
        try:
            if name == "decode":
                seqs: list[Any] = [{a, b}, *[{a}] * 4, *[{b}] * 3] if one else [a] * 5 + [b] * 3
                ctx.decode(rows([1, 2, 3, 4, 5, 6, 7, 8], seq=seqs))
            elif name == "rm":
                memory.rm(a, p, p + n if n > 0 else -1)
            elif name == "cp":
                memory.cp(a, b)
            elif name == "keep":
                memory.keep(a)
            elif name == "add":
                memory.add(a, p, -1, n)
            elif name == "div":
                memory.div(a, p, -1, 2)
            else:
                memory.clear()
        except e.PolyseqError:
            pass
        assert last_cells(sink.timeline).cells.columns() == memory.columns()


@pytest.mark.usefixtures("on_each_backend")
def test_every_recorded_call_is_planned_as_it_was(endless: Model) -> None:
    for unified in (True, False):
        sink = Kept()
        ctx = context(sink, endless, n_ctx=96 if unified else 150, unified=unified, n_batch=24, n_ubatch=8)
        list(start(ctx, endless, PROMPTS, params=SamplingParams(seed=1), max_tokens=4).run())
        found = sink.timeline
        assert len(found.calls) > 5
        for call in found.calls:
            assert call.checked is not None and call.placed is not None
            again = simulate_recorded(found, call.i_call)
            assert [u.batch_idxs.tolist() for u in again.ubatches] == [u.rows.tolist() for u in call.placed.ubatches]
            assert [s.cells.tolist() for s in again.slots] == [u.cells.tolist() for u in call.placed.ubatches]
        assert max(len(u.token) for u in simulate_recorded(found, 0, n_ubatch=2).ubatches if u.token is not None) == 2


# ---- failures --------------------------------------------------------------------------------------------


def test_refused_rows_are_recorded_with_their_code() -> None:
    sink = Kept()
    ctx = context(sink)
    with pytest.raises(e.BadToken):
        ctx.decode(rows([10**6]))
    assert (sink.ended.status, sink.ended.step, sink.ended.code) == ("error", "check", "bad_token")
    assert "1000000" in sink.ended.message
    ctx.decode(rows([1]))
    summary = summarise(sink.timeline)
    assert summary.n_calls == {"error": 1, "ok": 1} and summary.failures == {"bad_token": 1}
    assert summary.tokens_in == summary.tokens_out == 1


def test_no_slot_is_recorded_with_its_numbers() -> None:
    sink = Kept()
    ctx = context(sink, n_ctx=8, unified=True)
    ctx.decode(rows([1] * 6, seq=1))
    with pytest.raises(NoSlot) as caught:
        ctx.decode(rows([1] * 5, seq=2))
    refused = sink.timeline.calls[1].refused
    assert isinstance(refused, Refused)
    names = ("code", "needed", "free", "largest_run", "n_cells", "stream", "i_ubatch", "holders")
    assert all(getattr(refused, name) == getattr(caught.value, name) for name in names)
    assert (sink.ended.step, sink.ended.code) == ("place", "no_slot")
    with pytest.raises(NoSlot):
        simulate_recorded(sink.timeline, 1)
    assert last_cells(sink.timeline).cells.columns() == ctx.memory.columns()


def test_an_aborted_call_is_recorded_and_changes_nothing() -> None:
    sink = Kept()
    ctx = context(sink, n_ubatch=2)
    ctx.decode(rows([1, 2]))
    sink.at, sink.do = Computed, ctx.abort
    before = ctx.memory.columns()
    with pytest.raises(e.Aborted):
        ctx.decode(rows([3, 4, 5, 6, 7]))
    assert (sink.ended.status, sink.ended.code) == ("aborted", "aborted")
    call = sink.timeline.calls[1]
    assert len(call.computed) == 1 and call.placed is not None and len(call.placed.ubatches) == 3
    assert last_cells(sink.timeline).cells.columns() == ctx.memory.columns() == before
    assert summarise(sink.timeline).tokens_out == 2


def test_a_fault_in_compute_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Kept()
    ctx = context(sink)
    monkeypatch.setattr(ctx._plans, "get", lambda wanted: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ctx.decode(rows([1]))
    assert (sink.ended.status, sink.ended.step, sink.ended.code) == ("error", "plan", "ZeroDivisionError")


@pytest.mark.parametrize("at", [Checked, Computed, Ended])
def test_a_sink_that_fails_fails_the_call_and_nothing_else(at: type[Any]) -> None:
    def fail() -> None:
        raise OSError("sink")

    sink = Kept()
    ctx = context(sink)
    ctx.decode(rows([1, 2]))
    before = ctx.memory.columns()
    sink.at, sink.do = at, fail
    with pytest.raises(OSError, match="sink"):
        ctx.decode(rows([3]))
    assert ctx.memory.columns() == before
    sink.at = None
    ctx.decode(rows([3]))


# ---- the file --------------------------------------------------------------------------------------------


def coupled(sink: Kept | TraceFile) -> Context:
    """Shared rows, a copy, a shift, a refusal: every kind of event."""
    ctx = context(sink, n_ctx=16, n_ubatch=4, unified=True)
    ctx.decode(rows([1, 2, 3, 4, 5, 6], seq=[{0, 1}, {0, 1}, {0}, {1}, {0}, {1}]))
    ctx.memory.cp(0, 2)
    ctx.memory.add(0, 1, -1, 2)
    with pytest.raises(NoSlot):
        ctx.decode(rows([7] * 12, seq=1))
    ctx.decode(rows([7], seq=1))
    ctx.memory.rm(1)
    return ctx


def test_a_file_holds_what_a_sink_gets(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    sink = Kept()
    with TraceFile(path) as file:
        record = sink.record
        sink.record = lambda event, /: (record(event), file.record(event))[0]  # type: ignore[method-assign]
        coupled(sink)
    read = read_trace(path)
    assert {type(event) for event in read} == {type(event) for event in sink.events} >= {Refused, Operation}
    assert [repr(event) for event in read] == [repr(event) for event in sink.events]
    for ours, theirs in zip(read, sink.events, strict=True):
        if isinstance(ours, Checked) and isinstance(theirs, Checked):
            for name in ("token", "pos", "seq_ids", "seq_offsets", "output"):
                assert getattr(ours, name).dtype == getattr(theirs, name).dtype


def test_a_line_that_is_not_whole_yet_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with TraceFile(path) as file:
        coupled(file)
    whole = path.read_bytes()
    n = len(read_trace(path))
    path.write_bytes(whole[:-7])
    assert len(read_trace(path)) == n - 1
    for size in range(0, len(whole), 97):  # killed anywhere: readable, or no trace yet
        path.write_bytes(whole[:size])
        try:
            summary = summarise(timeline(read_trace(path)))
        except e.BadColumn:
            assert size < len(whole.split(b"\n")[0]) + 1
        else:
            assert summary.tokens_in == summary.tokens_out


@pytest.mark.parametrize(
    ("line", "words"),
    [(b"{", "line 3"), (b'{"event":"?"}', "line 3"), (b'{"event":"ended"}', "line 3"), (b"[]", "line 3"),
     (b'{"event":"checked","i_call":0,"at_ns":1,"ns":1,"token":["x"],"pos":0}', "line 3"), (b"\xff", "line 3")],
)  # fmt: skip
def test_a_line_that_is_no_event_is_named(tmp_path: Path, line: bytes, words: str) -> None:
    path = tmp_path / "t.jsonl"
    with TraceFile(path) as file:
        coupled(file)
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:2], line, *lines[2:], b""]))
    with pytest.raises(e.BadColumn, match=words):
        read_trace(path)


@pytest.mark.parametrize("text", ["", "hello\n", "{}\n", '{"event":"clear"}\n'])
def test_what_is_no_trace_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(e.BadColumn, match=r"no trace|line 1"):
        read_trace(path)


def test_a_file_traces_one_context(tmp_path: Path) -> None:
    with TraceFile(tmp_path / "t.jsonl") as file:
        context(file)
        with pytest.raises(e.ContextError, match="a file of its own"):
            context(file)


def test_a_closed_file_drops_what_comes_after(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    file = TraceFile(path)
    ctx = context(file)
    ctx.decode(rows([1]))
    file.close()
    file.close()
    ctx.decode(rows([2]))
    assert summarise(timeline(read_trace(path))).tokens_in == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_said_by_name() -> None:
    with pytest.raises(e.ContextError, match="/dev/full cannot be written"):
        context(TraceFile("/dev/full"))


# ---- many calls in one write ------------------------------------------------------------------------------


@pytest.fixture
def never_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are held back however slow the machine is."""
    monkeypatch.setattr(trace_file, "PERIOD_NS", 10**15)


def without_times(events: Any) -> list[str]:
    """Events as text, all times 0."""
    zero = [e._replace(**{name: 0 for name in e._fields if name.endswith("_ns") or name == "ns"}) for e in events]
    return [repr(event) for event in zero]


def play(ctx: Context, history: list[tuple[str, int, int, int, int]], one: bool) -> None:
    batch = ctx.batch()  # the same one for all: a trace must not look into it later
    for name, a, b, p, n in history:
        try:
            if name == "decode":
                seqs: list[Any] = [{a, b}, *[{a}] * 4, *[{b}] * 3] if one else [a] * 5 + [b] * 3
                batch.clear()
                batch.extend([1 + b, 2, 3, 4, 5, 6, 7, 8 + a], seq=seqs, output=[True] * (p + 2) + [False] * (6 - p))
                ctx.decode(batch)
            elif name in ("cp", "keep"):
                getattr(ctx.memory, name)(*(a, b)[: 2 if name == "cp" else 1])
            elif name == "clear":
                ctx.memory.clear()
            else:
                args = {"rm": (a, p, p + n if n > 0 else -1), "add": (a, p, -1, n), "div": (a, p, -1, 2)}[name]
                getattr(ctx.memory, name)(*args)
        except e.PolyseqError:
            pass


@pytest.mark.usefixtures("never_due")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps, st.booleans(), st.integers(1, 5), st.integers(1, 40))
def test_calls_told_together_are_told_as_one_by_one(
    tmp_path: Path, history: list[tuple[str, int, int, int, int]], one: bool, n_ubatch: int, n_rows: int
) -> None:
    path = tmp_path / "t.jsonl"
    sizes: dict[str, Any] = {"n_ctx": 24 if one else 36, "unified": one, "n_ubatch": n_ubatch}
    sink = Kept()
    play(context(sink, **sizes), history, one)
    with pytest.MonkeyPatch.context() as patched, TraceFile(path) as file:
        patched.setattr(trace_file, "MOST_ROWS", n_rows)  # of 8 to 16 in a call: some are held, some are not
        play(context(file, **sizes), history, one)
    assert without_times(read_trace(path)) == without_times(sink.events)


@pytest.mark.usefixtures("never_due")
@pytest.mark.parametrize("kind", ["window", "recurrent", "hybrid"])
@pytest.mark.parametrize("n_ubatch", [4, 32])
def test_calls_of_every_memory_are_told_together(tmp_path: Path, kind: str, n_ubatch: int) -> None:
    sink, path = Kept(), tmp_path / "t.jsonl"
    with TraceFile(path) as file:
        for one in (sink, file):
            ctx = kind_context(one, kind, n_ubatch=n_ubatch)
            for s in range(2):
                ctx.decode(rows(np.arange(9), seq=s))
            ctx.decode(rows(None, embd=np.ones((2, ctx.model.architecture.hparams.n_embd)), seq=[0, 1]))
            if one is file:
                assert len(read_trace(path)) == 1
    assert without_times(read_trace(path)) == without_times(sink.events)
    assert sum(isinstance(event, Checked) and event.token is None for event in sink.events) == 1


@pytest.mark.usefixtures("never_due")
def test_what_is_held_back_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"

    def n_calls() -> int:
        return len(timeline(read_trace(path)).calls)

    with TraceFile(path) as file:
        ctx = context(file, n_ctx=900, unified=True, n_batch=300)
        for _ in range(trace_file.MOST_HELD):
            ctx.decode(rows([1]))
        assert n_calls() == 0
        ctx.decode(rows([1]))  # as the next one begins
        assert n_calls() == trace_file.MOST_HELD + 1
        for _ in range(5):
            ctx.decode(rows([1] * 60))
        assert n_calls() == trace_file.MOST_HELD + 1 + 5  # the fifth would have made 300 rows
        for _ in range(trace_file.MOST_HELD):
            ctx.memory.rm(2)
        assert len(read_trace(path)) > 5 * (trace_file.MOST_HELD + 6)
    assert len(timeline(read_trace(path)).calls) == trace_file.MOST_HELD + 6


@pytest.mark.parametrize("why", ["many rows", "a slow call"])
def test_a_call_that_takes_long_is_in_the_file_before_it_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    path = tmp_path / "t.jsonl"
    monkeypatch.setattr(trace_file, "PERIOD_NS", 10**15 if why == "many rows" else 0)
    with TraceFile(path) as file:
        ctx = context(file, n_ctx=300, unified=True, n_batch=300, n_ubatch=150)
        compute, seen = ctx._compute.ubatch, []

        def looking(*args: Any) -> None:
            seen.append([type(event).__name__ for event in read_trace(path)])
            compute(*args)

        monkeypatch.setattr(ctx._compute, "ubatch", looking)
        ctx.decode(rows([1] * (256 if why == "many rows" else 152)))
    placed = ["Opened", "Checked", "Settled", "Placed"]
    assert seen == [placed, placed + ["Computed"] * (why == "a slow call")]


@pytest.mark.usefixtures("never_due")
def test_a_call_that_fails_is_in_the_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.jsonl"
    with TraceFile(path) as file:
        ctx = context(file)
        ctx.decode(rows([1]))
        monkeypatch.setattr(ctx._plans, "get", lambda wanted: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ctx.decode(rows([2]))
        names = [type(event).__name__ for event in read_trace(path)]
        steps = ["Checked", "Settled", "Placed"]
        assert names == ["Opened", *steps, "Computed", "Ended", *steps, "Ended"]
        found = timeline(read_trace(path)).calls[1].ended
        assert found is not None and (found.status, found.step) == ("error", "plan")


@pytest.mark.usefixtures("never_due")
def test_another_thread_may_flush_at_any_time(tmp_path: Path) -> None:
    path, sink, over = tmp_path / "t.jsonl", Kept(), threading.Event()

    def flush(file: TraceFile) -> None:
        while not over.is_set():
            file.flush()

    with TraceFile(path) as file:
        thread = threading.Thread(target=flush, args=(file,))
        thread.start()
        try:
            for one in (sink, file):
                ctx = context(one, n_ubatch=4, unified=True)
                for i in range(60):
                    ctx.decode(rows([1, 2, 3, 4, 5, 6], seq=i % 3))
                    ctx.memory.rm(i % 3)
        finally:
            over.set()
            thread.join()
    assert without_times(read_trace(path)) == without_times(sink.events)


PROGRAM = """
import sys
sys.path[:0] = {paths!r}
import os, signal
from test_trace import TraceFile, context, rows, trace_file
trace_file.PERIOD_NS = 10**15
file = TraceFile({path!r})
ctx = context(file)
for _ in range(3):
    ctx.decode(rows([1]))
{end}
"""


def ended_by(end: str, path: Path) -> list[str]:
    """What is in the file after a process made three calls and ended so."""
    text = PROGRAM.format(paths=[str(Path(__file__).parent), str(Path(__file__).parents[1])], path=str(path), end=end)
    subprocess.run([sys.executable, "-c", text], timeout=120, check="SIGKILL" not in end)
    return [type(event).__name__ for event in read_trace(path)]


CALL = ["Checked", "Settled", "Placed", "Computed", "Ended"]


@pytest.mark.parametrize(
    ("end", "left"),
    [
        ("", ["Opened", *3 * CALL]),  # nobody closes it
        ("del file, ctx", ["Opened", *3 * CALL]),
        ("import gc; del file, ctx; gc.collect(); os._exit(0)", ["Opened", *3 * CALL]),
        ("file.flush(); os._exit(0)", ["Opened", *3 * CALL]),
        ("os.kill(os.getpid(), signal.SIGKILL)", ["Opened"]),
    ],
)
def test_how_a_process_ends(tmp_path: Path, end: str, left: list[str]) -> None:
    assert ended_by(end, tmp_path / "t.jsonl") == left


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_tells_nothing_twice(tmp_path: Path) -> None:
    child = "if os.fork() == 0:\n    ctx.decode(rows([1])); ctx.memory.clear(); os._exit(0)\nos.wait()"
    assert ended_by(child, tmp_path / "a.jsonl") == ["Opened", *3 * CALL]
    child = child.replace("os._exit(0)", "file.close(); os._exit(0)")
    assert ended_by(child, tmp_path / "b.jsonl") == ["Opened", *3 * CALL, *CALL, "Operation"]
    child = "if os.fork() > 0:\n    os._exit(0)\nfile.close()"  # a daemon: the child goes on
    assert ended_by(child, tmp_path / "c.jsonl") == ["Opened", *3 * CALL]


@pytest.mark.usefixtures("never_due")
def test_a_disk_that_was_full_for_a_while_leaves_no_hole(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "t.jsonl"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    with TraceFile(path) as file:
        ctx = context(file, unified=True)
        ctx.decode(rows([1, 2], seq=1))
        ctx.memory.cp(1, 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limit[1]))
        try:
            with pytest.raises(e.ContextError, match="cannot be written"):
                file.flush()
            assert path.read_bytes()[-1:] != b"\n"
            with pytest.raises(e.ContextError, match="cannot be written"):
                ctx.decode(rows([3], seq=1))
            with pytest.raises(e.ContextError, match="cannot be written"):
                ctx.memory.rm(2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        ctx.decode(rows([4], seq=1))
    found = timeline(read_trace(path))
    assert last_cells(found).cells.columns() == ctx.memory.columns()
    assert [c.ok for c in found.calls] in ([True, True], [True, False, True])


def test_what_the_trace_takes_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = 0.02

    took: list[int] = []  # ns, event by event

    class Slow(Kept):
        def record(self, event: Event, /) -> None:
            super().record(event)
            began = perf_counter_ns()
            sleep(slow)
            took.append(perf_counter_ns() - began)

    sink = Slow()
    ctx = context(sink)
    for _ in range(2):
        ctx.decode(rows([1]))
        ctx.memory.rm(0, 5)
    ends = [event for event in sink.events if isinstance(event, Ended)]
    assert ends[0].trace_ns >= sum(took[1:5]) and ends[1].trace_ns >= sum(took[7:11])  # all but its end
    assert ends[0].trace_before_ns == 0 and ends[1].trace_before_ns >= sum(took[5:7])  # the end, an operation
    for call in sink.timeline.calls:  # counted once: with the steps it is no more than the call
        one = summarise(Timeline(sink.timeline.opened, (call,), sink.timeline.events))
        assert one.steps_s["trace"] > 4 * slow and one.steps_s["rest"] >= 0

    path = tmp_path / "t.jsonl"
    monkeypatch.setattr(trace_file, "PERIOD_NS", 10**15)
    with TraceFile(path) as file:
        write, waits = file._write, []
        monkeypatch.setattr(file, "_write", lambda: (write(), sleep(slow), waits.append(1)))
        ctx = context(file, unified=True)
        for _ in range(trace_file.MOST_HELD + 1):
            ctx.decode(rows([1]))
        assert len(waits) == 2  # the context's and one for all calls
    ends = [event for event in read_trace(path) if isinstance(event, Ended)]
    assert ends[-1].trace_ns >= slow * 1e9 > sorted(event.trace_ns for event in ends)[len(ends) // 2]


# ---- summary ---------------------------------------------------------------------------------------------


def test_rows_are_prefill_or_decode() -> None:
    sink = Kept()
    ctx = context(sink, unified=True)
    ctx.decode(rows([1, 2, 3], seq=[0, 0, 1]))
    ctx.decode(rows([4, 5, 6, 7], seq=[0, 1, 1, 2], output=[True, False, True, True]))
    ctx.decode(rows([8, 9], seq=[0, 1], output=[False, True]))
    checked = [c for c in sink.events if isinstance(c, Checked)]
    assert [decode_rows(c).tolist() for c in checked] == [[False] * 3, [True, False, False, False], [False, True]]


def test_the_longest_gap_is_that_between_outputs() -> None:
    sink = Kept()
    ctx = context(sink, unified=True)
    for tokens, seqs in (([1, 1, 1], [0, 0, 1]), ([1, 1], [0, 1]), ([1], [1]), ([1], [1]), ([1, 1], [0, 1])):
        ctx.decode(rows(tokens, seq=seqs))
    ctx.memory.rm(1)
    ctx.decode(rows([1, 1], seq=1))  # a new prompt: no gap, however long the pause
    ends = [c.end_ns for c in sink.timeline.calls]
    wanted = {0: max(ends[1] - ends[0], ends[4] - ends[1]) / 1e6, 1: max(np.diff(ends[:5])) / 1e6}
    assert {g.seq_id: g.ms for g in summarise(sink.timeline).gaps} == pytest.approx(wanted)


def test_an_empty_trace_has_a_summary_and_a_page() -> None:
    sink = Kept()
    context(sink)
    summary = summarise(sink.timeline)
    assert summary.tokens_in == 0 and summary.lines()
    assert "<canvas" in trace_page(sink.timeline, summary)
    assert json.loads(json.dumps(perfetto(sink.timeline)))["traceEvents"]


# ---- export ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(endless: Model) -> Kept:
    sink = Kept()
    ctx = context(sink, endless, unified=True, n_batch=24, n_ubatch=8)
    list(start(ctx, endless, PROMPTS, params=SamplingParams(seed=1), max_tokens=6).run())
    ctx.decode(rows([1] * 24, seq=[0] * 6 + [1] * 7 + [2] * 11))
    with pytest.raises(NoSlot):
        for _ in range(9):
            ctx.decode(rows([1] * 20))
    return sink


def test_perfetto_slices_nest_and_lanes_hold_every_row(run: Kept) -> None:
    found = json.loads(json.dumps(perfetto(run.timeline)))
    events = found["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "i", "C"}
    slices = [event for event in events if event["ph"] == "X"]
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in slices)
    calls = [s for s in slices if s["name"].startswith("call ")]
    assert len(calls) == len(run.timeline.calls) and calls[-1]["args"]["code"] == "no_slot"
    between = [s for s in slices if s["name"] == "between"]
    ordered = sorted([*calls, *between], key=lambda s: s["ts"])
    for one, other in itertools.pairwise(ordered):  # all the time is in a call or between two
        assert one["ts"] + one["dur"] == pytest.approx(other["ts"], abs=1e-2)
    assert len(between) >= len(calls) - 1
    inside = [s for s in slices if s["pid"] == 1 and s["name"] != "between" and not s["name"].startswith("call ")]
    for s in inside:
        assert any(c["ts"] - 1e-3 <= s["ts"] and s["ts"] + s["dur"] <= c["ts"] + c["dur"] + 1e-3 for c in calls), s
    pairs = sum(len(c.checked.seq_ids) for c in run.timeline.calls if c.ok and c.checked)
    assert sum(s["args"]["rows"] for s in slices if s["pid"] == 2) == pairs
    named = {event["tid"] for event in events if event["name"] == "thread_name" and event["pid"] == 2}
    assert named == {s["tid"] for s in slices if s["pid"] == 2}


@pytest.mark.parametrize("unified", [True, False])
def test_the_page_holds_the_cells_of_every_moment(endless: Model, unified: bool) -> None:
    sink = Kept()
    ctx = context(sink, endless, n_ctx=96 if unified else 150, unified=unified, n_ubatch=8)
    list(start(ctx, endless, PROMPTS, params=SamplingParams(seed=1), max_tokens=6).run())
    data = json.loads(json.dumps(page_data(sink.timeline)))
    pos = np.full(data["n_stream"] * data["n_cells"], -1)
    sets = np.zeros_like(pos)
    for drawn, (_, cache) in zip(data["moments"], replay(sink.timeline), strict=True):
        changed = np.array(drawn["changed"], np.int64).reshape(-1, 3)
        pos[changed[:, 0]], sets[changed[:, 0]] = changed[:, 1], changed[:, 2]
        assert (pos == cache.cells.pos.ravel()).all()
        for s in range(3):
            stream, held = cache.cells.held_by(s)
            lines = np.array([s in data["sets"][k] for k in sets.reshape(cache.cells.pos.shape)[stream]])
            assert (lines == held).all()


def test_the_page_stands_alone(run: Kept) -> None:
    page = trace_page(run.timeline, summarise(run.timeline))
    assert not re.search(r"https?:|\bsrc=|@import|url\((?!#)", page)
    assert page.count("</script>") == 2


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_the_page_draws_in_a_browser(run: Kept, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    path = tmp_path / "t.html"
    path.write_text(trace_page(run.timeline, summarise(run.timeline)), encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", path.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    fullest = max((cache.map().streams[0] for _, cache in replay(run.timeline)), key=lambda cells: cells.used)
    assert f"{fullest.used} of 96 cells used" in dom
    assert re.search(r"moment \d+ of \d+, at .* after call \d+", dom)
    drawn = [r for r in fullest.runs if r.seq_ids and r.count > 1 and r.first // 64 == (r.first + r.count - 1) // 64]
    assert drawn
    for r in drawn:
        said = f"cells {r.first}..{r.first + r.count - 1}: p{r.pos}..{r.pos + r.count - 1} of sequence {r.seq_ids[0]}"
        assert f"<title>{said}</title>" in dom


# ---- other kinds of memory -----------------------------------------------------------------------------------


KINDS = {"window": tiny_gemma3(), "recurrent": tiny_mamba(), "hybrid": tiny_lfm2()}


def kind_context(sink: Kept, kind: str, **sizes: Any) -> Context:
    tiny = KINDS[kind]
    return context(sink, Model(tiny.architecture, tiny.weights, tiny.metadata), **sizes)


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("kind", ["window", "hybrid"])
def test_cells_of_every_token_are_played_beside_others(kind: str, unified: bool) -> None:
    sink = Kept()
    ctx = kind_context(sink, kind, unified=unified, n_ubatch=8)
    for s in range(2):
        ctx.decode(rows(np.arange(20), seq=s))
    ctx.memory.cp(0, 2)
    ctx.memory.rm(1)
    ctx.decode(rows(np.arange(6), seq=[0, 0, 0, 2, 2, 2]))
    blob = ctx.save(2)
    ctx.memory.rm(2)
    ctx.restore(blob)
    ctx.decode(rows(np.arange(3), seq=2))
    found = sink.timeline
    assert found.opened.memory == kind
    cells, kept = ctx.memory._memory.kv.cells, last_cells(found).cells  # type: ignore[attr-defined]
    for name in ("pos", "seqs", "used", "pos_max"):
        np.testing.assert_array_equal(getattr(kept, name), getattr(cells, name))
    assert kind in summarise(found).lines()[0] and "cells used" in json.dumps(perfetto(found))
    assert trace_page(found, summarise(found))
    with pytest.raises(e.BadColumn, match=f"memory {kind} has a part beside"):
        simulate_recorded(found, 0)


@pytest.mark.parametrize("kind", ["window", "hybrid"])
def test_a_copy_of_nothing_replaces_nothing(kind: str) -> None:
    sink = Kept()
    ctx = kind_context(sink, kind, unified=True)
    ctx.decode(rows(np.arange(5), seq=1))
    ctx.memory.cp(0, 1)
    assert ctx.memory.pos_max(1) == 4
    assert last_cells(sink.timeline).n_used == ctx.memory.n_used == 5


def test_a_memory_without_cells_of_every_token_says_so() -> None:
    sink = Kept()
    ctx = kind_context(sink, "recurrent")
    ctx.decode(rows(np.arange(20)))
    found = sink.timeline
    assert list(replay(found)) == [] and trace_page(found, summarise(found)) and perfetto(found)
    with pytest.raises(e.BadColumn, match="recurrent keeps no cells of every token"):
        simulate_recorded(found, 0)


def test_what_was_restored_is_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    with TraceFile(file) as sink:
        ctx = context(sink, unified=True)
        ctx.decode(rows(np.arange(9), seq=1))
        blob = ctx.save(1)
        ctx.memory.clear()
        ctx.restore(blob, 2)
    found = timeline(read_trace(file))
    assert "restore(2)" in [moment.label for moment, _ in replay(found)]
    assert last_cells(found).cells.columns() == ctx.memory.columns()
