"""A trace as one page that needs nothing else: time, cells at any moment, lanes, shapes, rates and gaps.

Enters: a `Timeline` and its summary. Leaves: HTML text with its data and script inside. Cells are stored as what
changed from moment to moment, so that a page grows with the tokens, not with the cells.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyseq.batch.seqset import ids_of
from polyseq.explain.palette import N_COLOURS, colour_of
from polyseq.explain.replay import replay
from polyseq.explain.timeline import Timeline, all_blocks, decode_rows, pairs_of
from polyseq.explain.trace_script import SCRIPT, STYLE
from polyseq.explain.trace_summary import TraceSummary

_N_SHAPES = 24
_KEYS = (
    ("prefill", "#E69F00", "M-4 20L16 0M8 20L28 0M20 20L40 0"),
    ("decode", "#56B4E9", ""),
    ("both in one ubatch", "#009E73", "M-4 20L16 0M8 20L28 0M20 20L40 0M-4 0L16 20M8 0L28 20M20 0L40 20"),
)


def trace_page(timeline: Timeline, summary: TraceSummary) -> str:
    """Pure. A page for a browser; it loads nothing."""
    data = json.dumps(page_data(timeline), separators=(",", ":")).replace("<", "\\u003c")
    title = f"Trace of {summary.model}"
    keys = "".join(
        f'<span class="key"><svg viewBox="0 0 34 16" height="16"><rect width="34" height="16" fill="{fill}"/>'
        f'<path d="{lines}" stroke="#000" opacity=".5" fill="none"/></svg> {name}</span>'
        for name, fill, lines in _KEYS
    )
    gaps = "".join(f"<tr><td>{g.seq_id}</td><td>{g.ms:.2f}</td><td>{g.i_call}</td></tr>" for g in summary.gaps)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style></head><body>
<h1>{escape(title)}</h1>
<p>Prefill {summary.prefill_per_s:.1f} tokens/s ({summary.prefill_tokens}), decode {summary.decode_per_s:.1f} tokens/s
({summary.decode_tokens}); {escape(_longest(summary))}.</p>
<h2>Ubatches over time, and the sequences in each</h2>
<p>{keys} <button id="in">zoom in</button> <button id="out">zoom out</button> <button id="all">all</button></p>
<canvas id="time"></canvas><div class="said" id="timesaid">Point at an ubatch; click to go to that moment.</div>
<h2>The cells at one moment</h2>
<input type="range" id="moment" min="0" aria-label="moment"><div id="when"></div>
<p class="said">Number and colour: the sequence; p: its positions; dashed: free; striped: shared by several.</p>
<div id="cells"></div><div class="cols"><p id="facts"></p><table id="held"></table></div>
<div class="cols"><div><h2>Shapes (sequence sets x rows)</h2>{_histogram(summary.shapes)}</div>
<div><h2>Longest wait between two outputs</h2>
<table><tr><th>sequence</th><th>ms</th><th>ended by call</th></tr>{gaps}</table></div></div>
<h2>In numbers</h2><pre>{escape(chr(10).join(summary.lines()))}</pre>
<script type="application/json" id="data">{data}</script><script>{SCRIPT}</script></body></html>
"""


def page_data(timeline: Timeline) -> dict[str, Any]:
    """Pure. What the script draws; times in microseconds from the trace's start."""
    start = timeline.start_ns
    blocks, seqs = _blocks(timeline)
    moments, sets, n_drawn = _moments(timeline)
    fullest = max(range(len(moments)), key=lambda i: moments[i].pop("used"), default=-1)
    opened = timeline.opened
    return {
        "total": max((timeline.end_ns - start) / 1e3, 1.0),
        "blocks": blocks,
        "seqs": seqs,
        "failed": [
            {"at": (c.ended.at_ns - start) / 1e3, "us": c.ended.ns / 1e3, "code": c.ended.code}
            for c in timeline.calls
            if c.ended is not None and not c.ok
        ],
        "moments": moments,
        "first_shown": fullest + 1,
        "sets": sets,
        "n_stream": 1 if opened.unified else opened.n_seq_max,
        "n_cells": opened.n_ctx_seq,
        "n_drawn": n_drawn,
        "colours": [colour_of(i) for i in range(N_COLOURS)],
    }


def _blocks(timeline: Timeline) -> tuple[list[dict[str, Any]], list[int]]:
    """Every computed ubatch with [sequence, rows, whether decode] of each sequence; and all sequences seen."""
    made, seen = [], set()
    for call, ubatch, done in all_blocks(timeline.calls):
        assert call.checked is not None
        decoding = decode_rows(call.checked)[ubatch.rows]
        owner, seq = pairs_of(call.checked, ubatch.rows)
        ids, first, counts = np.unique(seq, return_index=True, return_counts=True)
        lanes = zip(ids.tolist(), counts.tolist(), decoding[owner[first]].astype(int).tolist(), strict=True)
        seen.update(ids.tolist())
        made.append(
            {
                "call": call.i_call,
                "i": done.i_ubatch,
                "at": (done.at_ns - timeline.start_ns) / 1e3,
                "us": done.ns / 1e3,
                "n": ubatch.n_tokens,
                "decode": int(np.count_nonzero(decoding)),
                "shape": ubatch.shape,
                "reason": ubatch.reason,
                "miss": done.plan_miss,
                "seqs": [list(lane) for lane in lanes],
            }
        )
    return made, sorted(seen)


def _moments(timeline: Timeline) -> tuple[list[dict[str, Any]], list[list[int]], int]:
    """Changes of the cells from moment to moment as [cell, position, index of its set, ...]; sets; cells ever used."""
    sets: dict[tuple[int, ...], int] = {(): 0}
    moments: list[dict[str, Any]] = []
    pos, seqs = None, None
    n_ever = 1
    for moment, cache in replay(timeline):
        cells = cache.cells
        before_pos = np.full_like(cells.pos, -1) if pos is None else pos
        before_seqs = np.zeros_like(cells.seqs) if seqs is None else seqs
        changed = (cells.pos != before_pos) | (cells.seqs != before_seqs).any(axis=2)
        stream, cell = np.nonzero(changed)
        numbers = _sets(cache.n_stream, stream, cells.seqs[changed], sets)
        columns = np.stack((stream * cells.n_cells + cell, cells.pos[changed], numbers), 1)
        moments.append(
            {
                "at": (moment.at_ns - timeline.start_ns) / 1e3,
                "label": moment.label,
                "changed": columns.ravel().tolist(),
                "used": cache.n_used,
            }
        )
        n_ever = max(n_ever, int(cells.end.max()))
        pos, seqs = cells.pos.copy(), cells.seqs.copy()
    n_drawn = min(-(-n_ever // 64) * 64, timeline.opened.n_ctx_seq)
    return moments, [list(ids) for ids in sets], n_drawn


def _sets(
    n_stream: int, stream: NDArray[np.intp], masks: NDArray[np.uint64], sets: dict[tuple[int, ...], int]
) -> NDArray[np.intp]:
    """Changes `sets` by new ones. [n] the number of each cell's set; with several streams a cell's is its stream."""
    if n_stream > 1:
        lines, inverse = np.unique(np.where(masks[:, 0] != 0, stream, -1), return_inverse=True)
        ids = [(s,) if s >= 0 else () for s in lines.tolist()]
    else:
        masks_found, inverse = np.unique(masks, axis=0, return_inverse=True)
        ids = [tuple(ids_of(mask).tolist()) for mask in masks_found]
    numbers = np.array([sets.setdefault(i, len(sets)) for i in ids], np.intp)
    return numbers[inverse.reshape(-1)]


def _longest(summary: TraceSummary) -> str:
    if not summary.gaps:
        return "no sequence waited between two outputs"
    worst = summary.gaps[0]
    return f"the longest wait between two outputs is {worst.ms:.1f} ms (sequence {worst.seq_id}, call {worst.i_call})"


def _histogram(shapes: dict[str, int]) -> str:
    most = max(shapes.values(), default=1)
    rows = "".join(
        f"<tr><td>{shape}</td><td>{n}</td>"
        f'<td><div class="bar" style="width:{max(300 * n // most, 1)}px"></div></td></tr>'
        for shape, n in list(shapes.items())[:_N_SHAPES]
    )
    more = len(shapes) - _N_SHAPES
    note = f"<tr><td>and {more} more</td></tr>" if more > 0 else ""
    return f"<table><tr><th>shape</th><th>ubatches</th><th></th></tr>{rows}{note}</table>"
