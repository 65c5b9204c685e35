"""A trace in Chrome's trace event format, as https://ui.perfetto.dev opens it.

Enters: a `Timeline`. Leaves: a dict for `json`: calls with their steps inside, a lane per sequence, used cells as a
counter. Times there are microseconds from the trace's start.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polyseq.explain.replay import replay
from polyseq.explain.timeline import Call, Timeline, decode_rows, pairs_of
from polyseq.trace import Operation, Restored

_CONTEXT, _SEQUENCES = 1, 2  # pids
_CALLS, _OPERATIONS, _BETWEEN = 1, 2, 3  # tids of the context
_UBATCH_STEPS = ("apply", "plan", "compute", "collect")


def perfetto(timeline: Timeline) -> dict[str, Any]:
    """Pure."""
    start = timeline.start_ns
    events = [
        _name(_CONTEXT, 0, "process_name", f"context: {timeline.opened.model}"),
        _name(_CONTEXT, _CALLS, "thread_name", "decode calls"),
        _name(_CONTEXT, _OPERATIONS, "thread_name", "memory operations"),
        _name(_CONTEXT, _BETWEEN, "thread_name", "between calls"),
        _name(_SEQUENCES, 0, "process_name", "sequences"),
    ]
    events += [_slice("between", _CONTEXT, _BETWEEN, b.at_ns - start, b.ns, {}) for b in timeline.between]
    seen: set[int] = set()
    for call in timeline.calls:
        events += _call(call, start)
        if call.ok:
            events += _lanes(call, start, seen)
    events += [_name(_SEQUENCES, s + 1, "thread_name", f"sequence {s}") for s in sorted(seen)]
    for event in timeline.events:
        if isinstance(event, Operation | Restored):
            name, args = _operation(event)
            at = (event.at_ns - start) / 1e3
            events.append({"ph": "i", "s": "t", "pid": _CONTEXT, "tid": _OPERATIONS, "name": name, "ts": at,
                           "args": {"args": args}})  # fmt: skip
    for moment, cache in replay(timeline):
        at = (moment.at_ns - start) / 1e3
        events.append({"ph": "C", "pid": _CONTEXT, "name": "cells used", "ts": at, "args": {"used": cache.n_used}})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _operation(event: Operation | Restored) -> tuple[str, list[int]]:
    """Its name and its arguments; of what was restored, the sequences."""
    if isinstance(event, Operation):
        return event.name, list(event.args)
    return "restore", np.unique(event.seq_ids).tolist()


def _call(call: Call, start: int) -> list[dict[str, Any]]:
    """The call, its steps and its ubatches, nested by their times."""
    made = []
    if call.ended is not None:
        args: dict[str, Any] = {"status": call.ended.status}
        if call.checked is not None:
            args |= {"rows": call.checked.n_tokens, "outputs": int(call.checked.output.sum())}
        if not call.ok:
            args |= {"step": call.ended.step, "code": call.ended.code, "message": call.ended.message}
        name = f"call {call.i_call}" + ("" if call.ok else f" ({call.ended.code})")
        made.append(_slice(name, _CONTEXT, _CALLS, call.ended.at_ns - start, call.ended.ns, args))
    for name, event in (("check", call.checked), ("settle", call.settled), ("place", call.placed or call.refused)):
        if event is not None:
            made.append(_slice(name, _CONTEXT, _CALLS, event.at_ns - start, event.ns, {}))
    for ubatch, done in call.blocks:
        at = done.at_ns - start
        args = {"rows": ubatch.n_tokens, "outputs": done.n_outputs, "ended because": ubatch.reason,
                "plan": done.plan_miss or "reused"}  # fmt: skip
        made.append(_slice(f"ubatch {done.i_ubatch}: {ubatch.shape}", _CONTEXT, _CALLS, at, done.ns, args))
        for step in _UBATCH_STEPS:
            ns = getattr(done, f"{step}_ns")
            made.append(_slice(step, _CONTEXT, _CALLS, at, ns, {}))
            at += ns
    return made


def _lanes(call: Call, start: int, seen: set[int]) -> list[dict[str, Any]]:
    """Changes `seen`. A slice in the lane of each sequence for each ubatch that it has rows in."""
    assert call.checked is not None
    made, decoding = [], decode_rows(call.checked)
    for ubatch, done in call.blocks:
        owner, seq = pairs_of(call.checked, ubatch.rows)
        is_decode = decoding[ubatch.rows[owner]]
        seqs, first, counts = np.unique(seq, return_index=True, return_counts=True)
        for s, i, n in zip(seqs.tolist(), first.tolist(), counts.tolist(), strict=True):
            name = "decode" if is_decode[i] else f"prefill {n}"
            args = {"rows": n, "call": call.i_call, "ubatch": done.i_ubatch}
            made.append(_slice(name, _SEQUENCES, s + 1, done.at_ns - start, done.ns, args))
            seen.add(s)
    return made


def _slice(name: str, pid: int, tid: int, at_ns: int, ns: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": at_ns / 1e3, "dur": ns / 1e3, "args": args}


def _name(pid: int, tid: int, kind: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}}
