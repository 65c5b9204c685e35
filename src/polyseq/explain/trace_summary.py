"""A trace in numbers: tokens in and out, shapes, plans, where the time went, rates and gaps.

Enters: a `Timeline`. Leaves: a `TraceSummary` for people and for programs. Failed calls count as calls and in time;
rows, shapes, rates and gaps are those of calls that succeeded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from polyseq.explain.timeline import Call, Timeline, all_blocks, decode_rows, seqs_of
from polyseq.trace import Operation, Restored

STEPS = ("check", "settle", "place", "apply", "plan", "compute", "collect", "trace", "rest")


@dataclass(frozen=True, slots=True)
class Gap:
    """The longest wait of a sequence between two outputs, the second a decode row."""

    seq_id: int
    ms: float
    i_call: int  # the call that ended it


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """What a trace says in all. Times in seconds unless the name says otherwise."""

    model: str
    backend: str
    settings: dict[str, int | bool | str]
    n_calls: dict[str, int]  # by how they ended: ok, error, aborted, unfinished
    failures: dict[str, int]  # by code
    n_ubatches: int
    n_operations: int
    tokens_in: int  # rows given
    tokens_out: int  # rows computed
    n_outputs: int
    shapes: dict[str, int]  # n_seqs x n_seq_tokens, commonest first
    reasons: dict[str, int]  # why cuts ended
    plan_hits: int
    plan_misses: dict[str, int]  # by reason
    prefill_tokens: int
    prefill_s: float
    decode_tokens: int
    decode_s: float
    steps_s: dict[str, float]  # of all calls, by step
    calls_s: float
    between_s: float  # outside of calls; with them it is wall_s
    wall_s: float  # from the first call or operation to the end of the last
    gaps: tuple[Gap, ...]  # longest first

    @property
    def prefill_per_s(self) -> float:
        """Prefill rows per second of the calls' time that is theirs; 0 before any."""
        return self.prefill_tokens / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_per_s(self) -> float:
        """Decode rows per second of the calls' time that is theirs; 0 before any."""
        return self.decode_tokens / self.decode_s if self.decode_s else 0.0

    def to_json(self) -> dict[str, Any]:
        """Pure. Plain lists and numbers."""
        rates = {"prefill_tokens_per_s": self.prefill_per_s, "decode_tokens_per_s": self.decode_per_s}
        return {**asdict(self), **rates}

    def lines(self) -> list[str]:
        """Pure. For people, at most some 100 columns."""
        s = self.settings
        kind = "unified" if s["unified"] else "streams"
        kind += "" if s["memory"] == "kv" else f", {s['memory']} memory"
        lines = [
            f"{self.model} on {self.backend}: {s['n_ctx']} cells ({kind}), {s['n_seq_max']} sequences, "
            f"n_batch {s['n_batch']}, n_ubatch {s['n_ubatch']}",
            f"calls     {_counted(self.n_calls)}; {self.n_ubatches} ubatches, {self.n_operations} memory operations",
            f"tokens    {self.tokens_in} in, {self.tokens_out} out, {self.n_outputs} with an output",
        ]
        if self.failures:
            lines.append(f"failed    {_counted(self.failures)}")
        lines += [
            f"prefill   {self.prefill_tokens} tokens, {self.prefill_per_s:.1f} tokens/s",
            f"decode    {self.decode_tokens} tokens, {self.decode_per_s:.1f} tokens/s",
            f"plans     {self.plan_hits} reused, {sum(self.plan_misses.values())} built"
            + (f" ({_counted(self.plan_misses)})" if self.plan_misses else ""),
            f"shapes    {_counted(self.shapes, 8)}",
            f"cuts      {_counted(self.reasons)}",
        ]
        worst = ", ".join(f"sequence {g.seq_id} {g.ms:.1f} ms (call {g.i_call})" for g in self.gaps[:2])
        lines.append(f"gaps      longest between two outputs: {worst or 'none'}")
        lines.append(
            f"time      {self.wall_s:.3f} s: {self.calls_s:.3f} in calls, {self.between_s:.3f} between; of the calls:"
        )
        longest = max(self.steps_s.values(), default=0.0)
        for step, seconds in self.steps_s.items():
            bar = "#" * round(30 * seconds / longest) if longest else ""
            share = seconds / self.calls_s if self.calls_s else 0.0
            lines.append(f"  {step:<8}{1e3 * seconds:>11.2f} ms {share:>7.2%}  {bar}".rstrip())
        return lines


def summarise(timeline: Timeline) -> TraceSummary:
    """Pure."""
    opened, calls = timeline.opened, timeline.calls
    done = all_blocks(calls)
    sizes = ("n_ctx", "n_ctx_seq", "n_seq_max", "n_batch", "n_ubatch", "unified", "memory")
    prefill, decode = _shares(calls)
    shapes = Counter(u.shape for _, u, _ in done)
    misses = Counter(c.plan_miss for call in calls for c in call.computed)
    hits = misses.pop("", 0)
    return TraceSummary(
        model=opened.model,
        backend=opened.backend,
        settings={name: getattr(opened, name) for name in sizes},
        n_calls=dict(Counter(c.ended.status if c.ended else "unfinished" for c in calls)),
        failures=dict(Counter(c.ended.code for c in calls if c.ended and not c.ok)),
        n_ubatches=len(done),
        n_operations=sum(
            isinstance(e, Restored) or (isinstance(e, Operation) and e.name != "settle") for e in timeline.events
        ),
        tokens_in=sum(c.checked.n_tokens for c in calls if c.ok and c.checked),
        tokens_out=sum(u.n_tokens for _, u, _ in done),
        n_outputs=sum(d.n_outputs for _, _, d in done),
        shapes=dict(shapes.most_common()),
        reasons=dict(Counter(u.reason for _, u, _ in done).most_common()),
        plan_hits=hits,
        plan_misses=dict(misses),
        prefill_tokens=prefill[0],
        prefill_s=prefill[1],
        decode_tokens=decode[0],
        decode_s=decode[1],
        steps_s=_steps(calls),
        calls_s=sum(c.ended.ns for c in calls if c.ended) / 1e9,
        between_s=sum(b.ns for b in timeline.between) / 1e9,
        wall_s=(timeline.end_ns - timeline.start_ns) / 1e9,
        gaps=longest_gaps(timeline),
    )


def _steps(calls: Sequence[Call]) -> dict[str, float]:
    """Seconds of each step over all calls that ended; `rest` is what is in no step, such as a step that failed."""
    total = dict.fromkeys(STEPS, 0)
    for call in calls:
        if call.ended is None:
            continue
        parts = {"check": call.checked, "settle": call.settled, "place": call.placed or call.refused}
        known = {name: event.ns for name, event in parts.items() if event is not None}
        for name in ("apply", "plan", "compute", "collect"):
            known[name] = sum(getattr(c, f"{name}_ns") for c in call.computed)
        known["trace"] = call.ended.trace_ns
        known["rest"] = call.ended.ns - sum(known.values())
        for name, ns in known.items():
            total[name] += ns
    return {name: ns / 1e9 for name, ns in total.items()}


def _shares(calls: Sequence[Call]) -> tuple[tuple[int, float], tuple[int, float]]:
    """((prefill rows, seconds), (decode rows, seconds)): an ubatch's time is shared by its rows, a call's rest too."""
    rows, seconds = np.zeros(2, np.int64), np.zeros(2)
    for call in calls:
        if not call.ok or call.checked is None or call.ended is None:
            continue
        decoding = decode_rows(call.checked)
        count = np.bincount(decoding.astype(np.intp), minlength=2)
        rows += count
        rest = call.ended.ns - sum(c.ns for c in call.computed)
        seconds += rest * count / count.sum()
        for ubatch, done in call.blocks:
            part = np.bincount(decoding[ubatch.rows].astype(np.intp), minlength=2)
            seconds += done.ns * part / part.sum()
    seconds /= 1e9
    return (int(rows[0]), float(seconds[0])), (int(rows[1]), float(seconds[1]))


def longest_gaps(timeline: Timeline) -> tuple[Gap, ...]:
    """Pure. For each sequence the longest time from one output to the next, if that is of a decode row; longest first.

    Outputs are there when their call ends. A prompt's last row starts a new count, so idle time of a sequence that
    waits for its next prompt is no gap.
    """
    n = timeline.opened.n_seq_max
    last, worst, where = np.full(n, -1, np.int64), np.zeros(n, np.int64), np.full(n, -1, np.intp)
    for call in timeline.calls:
        if not call.ok or call.checked is None:
            continue
        rows = call.checked
        decoding = seqs_of(rows, np.flatnonzero(decode_rows(rows)))
        decoding = decoding[last[decoding] >= 0]
        gap = call.end_ns - last[decoding]
        longer = gap > worst[decoding]
        worst[decoding[longer]] = gap[longer]
        where[decoding[longer]] = call.i_call
        last[seqs_of(rows, np.flatnonzero(rows.output))] = call.end_ns
    order = np.argsort(-worst, kind="stable")
    return tuple(Gap(int(s), float(worst[s]) / 1e6, int(where[s])) for s in order if where[s] >= 0)


def _counted(counts: dict[str, int], n_max: int = 6) -> str:
    parts = [f"{n} {word}" if n_max == 6 else f"{n} of {word}" for word, n in list(counts.items())[:n_max]]
    more = len(counts) - n_max
    return (", ".join(parts) or "none") + (f" and {more} more" if more > 0 else "")
