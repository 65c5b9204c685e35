"""A trace played again on empty cells: what the memory held at any moment, and a recorded call planned anew.

Enters: a `Timeline`. Leaves: a `KvCache` after each event that changed it, or a `Simulation`. Metadata only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from polyseq.batch import Batch, Limits, check
from polyseq.batch.seqset import n_words, union_by_row
from polyseq.context_sizes import ContextSizes
from polyseq.errors import BadColumn
from polyseq.explain.advance import planned
from polyseq.explain.simulation import Simulation
from polyseq.explain.spec import PlanSpec
from polyseq.explain.timeline import Timeline, pairs_of
from polyseq.memory import KvCache
from polyseq.memory.saved import Placing, SavedPart
from polyseq.trace import Checked, Ended, Operation, PlacedUbatch, Restored


@dataclass(frozen=True, slots=True)
class Moment:
    """The memory after one event."""

    at_ns: int
    i_call: int  # -1: an operation
    label: str


def replay(timeline: Timeline) -> Iterator[tuple[Moment, KvCache]]:
    """Changes one cache as it goes, and yields it after each call that succeeded and each operation.

    The cells are those of the part that keeps every token; of a memory that has none nothing is yielded. What a
    failed call applied was taken back, so it changes nothing. Raises `BadColumn` where an event cannot be.
    """
    if not timeline.opened.keeps_cells:
        return
    cache = _empty(timeline)
    calls = {c.i_call: c for c in timeline.calls}
    for i, event in enumerate(timeline.events):
        if isinstance(event, Operation | Restored):
            try:
                _operate(cache, event, copy_replaces=timeline.opened.copy_replaces)
            except (TypeError, ValueError, IndexError, StopIteration) as error:
                raise BadColumn(f"event {i}, {_words(event)}, cannot be played: {error}", row=i) from None
            yield Moment(event.at_ns, -1, _words(event)), cache
        elif isinstance(event, Ended) and event is calls[event.i_call].ended and event.status == "ok":
            call = calls[event.i_call]
            if call.checked is None or call.placed is None:
                raise BadColumn(f"call {event.i_call} succeeded, but its rows are not in the trace", row=i)
            for ubatch in call.placed.ubatches:
                _apply(cache, call.checked, ubatch)
            yield Moment(call.end_ns, call.i_call, f"call {call.i_call}: {call.checked.n_tokens} rows"), cache


def memory_before(timeline: Timeline, i_call: int) -> KvCache:
    """Pure. What the memory held when that call was placed, or when the trace ended for a call behind the last.

    Rows of the call itself come after it, sequence operations before it count. Raises `BadColumn` for a memory whose
    trace does not say.
    """
    if not timeline.opened.keeps_cells:
        raise BadColumn(
            f"memory {timeline.opened.memory} keeps no cells of every token: its trace does not say what it held"
        )
    firsts = (i for i, e in enumerate(timeline.events) if getattr(e, "i_call", -1) == i_call)
    events = timeline.events[: next(firsts, None)]
    calls = tuple(c for c in timeline.calls if c.i_call != i_call)
    cache = _empty(timeline)
    for _, now in replay(Timeline(timeline.opened, calls, events)):
        cache = now
    return cache


def simulate_recorded(timeline: Timeline, i_call: int, *, n_ubatch: int | None = None) -> Simulation:
    """Pure. The batch of a recorded call, cut and placed anew on what the memory held then; perhaps in other ubatches.

    Raises `BadColumn` for a call whose rows were refused by the check, `NoSlot` where there is no room.
    """
    rows, opened = timeline.call(i_call).checked, timeline.opened
    if rows is None:
        raise BadColumn(f"the rows of call {i_call} did not pass the check, so the trace does not hold them")
    if opened.n_pos > 1:
        raise BadColumn(f"positions of {opened.n_pos} sections cannot be planned anew yet")
    cache = memory_before(timeline, i_call)
    if opened.parts != ("kv",):
        raise BadColumn(
            f"memory {opened.memory} has a part beside the cells of every token, which a trace does not hold: its "
            "calls can be looked at, but not planned anew on what it held; `polyseq plan --memory` takes rows"
        )
    sizes = ContextSizes(
        n_ctx=opened.n_ctx,
        n_ctx_seq=opened.n_ctx_seq,
        n_seq_max=opened.n_seq_max,
        n_batch=opened.n_batch,
        n_ubatch=opened.n_ubatch if n_ubatch is None else max(1, min(n_ubatch, opened.n_batch)),
        unified=opened.unified,
        notes=(),
    )
    limits = Limits(n_vocab=np.iinfo(np.int32).max, n_seq_max=opened.n_seq_max, n_batch=opened.n_batch)
    checked = check(_batch(rows), limits, cache.ranges)
    plan = planned(cache, checked, sizes.n_ubatch)
    held = tuple(int(np.count_nonzero(cache.cells.held_by(s)[1])) for s in range(opened.n_seq_max))
    spec = PlanSpec(
        memory="unified" if opened.unified else "streams",
        strategy="packed" if opened.packed else None,
        n_ctx=opened.n_ctx,
        n_seq_max=opened.n_seq_max,
        n_batch=opened.n_batch,
        n_ubatch=sizes.n_ubatch,
        held=held,
    )
    return Simulation(spec, sizes, checked, plan.ubatches, plan.slots)


def _empty(timeline: Timeline) -> KvCache:
    o = timeline.opened
    return KvCache(n_cells=o.n_ctx_seq, n_seq_max=o.n_seq_max, unified=o.unified, n_pos=o.n_pos, packed=o.packed)


def _batch(rows: Checked) -> Batch:
    """Embedding rows stand as token 0: where they go does not depend on what they hold."""
    token = np.zeros(rows.n_tokens, np.int32) if rows.token is None else rows.token
    seqs = [ids.tolist() for ids in np.split(rows.seq_ids, rows.seq_offsets[1:-1])]
    batch = Batch()
    span = np.full(rows.n_tokens, -1) if rows.span is None else rows.span
    for start, stop in pairwise([0, *(np.flatnonzero(np.diff(span)) + 1).tolist(), rows.n_tokens]):
        whole = bool(span[start] >= 0)
        seq = set(seqs[start]) if whole else seqs[start:stop]
        batch.extend(
            token[start:stop], seq=seq, pos=rows.pos[0, start:stop], output=rows.output[start:stop], span=whole
        )
    return batch


def _operate(cache: KvCache, event: Operation | Restored, *, copy_replaces: bool) -> None:
    if isinstance(event, Restored):
        return _restore(cache, event)
    match event.name:
        case "rm":
            cache.rm(*event.args)
        case "cp":
            src, dst = event.args[:2]
            if copy_replaces and src != dst and cache.pos_max(src) >= 0:
                cache.rm(dst)
            cache.cp(*event.args)
        case "keep":
            cache.keep(*event.args)
        case "add":
            cache.add(*event.args)
        case "div":
            cache.div(*event.args)
        case "clear":
            cache.clear()
        case "settle":
            cache.settle()
        case "moved" if len(event.args) > 1:
            pass  # cells of the window part
        case "moved":
            cache.moved(next(move for move in cache.compaction() if move.stream == event.args[0]))
        case _:
            raise ValueError("no such operation")


def _restore(cache: KvCache, event: Restored) -> None:
    where = np.zeros(len(event.pos), np.int32)
    part = SavedPart(
        "kv",
        pos=event.pos,
        entry=event.entry,
        seq=event.seq_ids,
        streams=where,
        cells=where,
        heads=event.heads,
        starts=np.full(cache.n_seq_max, -1, np.int32),
    )
    placing = Placing("kv", event.placed, event.streams, event.cells, event.as_saved)
    cache.restore((part,), (placing,))


def _words(event: Operation | Restored) -> str:
    if isinstance(event, Restored):
        return f"restore({', '.join(map(str, np.unique(event.seq_ids)))})"
    return f"{event.name}({', '.join(map(str, event.args))})"


def _apply(cache: KvCache, rows: Checked, ubatch: PlacedUbatch) -> None:
    """Changes the cells as `KvCache.apply` does; everything it needs is in the trace."""
    if len(ubatch.cells) != ubatch.n_tokens:
        raise BadColumn("this memory keeps no cells of every token, so that its trace does not say what it held")
    owner, seq = pairs_of(rows, ubatch.rows)
    pos = rows.pos[0][ubatch.rows]
    counts = np.bincount(owner, minlength=ubatch.n_tokens)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    masks = union_by_row(seq, offsets, n_words(cache.n_seq_max))
    cache.cells.put(ubatch.streams[ubatch.row_stream], ubatch.cells, pos, masks, seq, pos[owner])
