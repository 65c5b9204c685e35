"""Rounding or defect: the same prompts alone, together, in other cuts, through other memories, row against row.

Enters: a model and prompts. Leaves: a `Report`. The logits of the solo run are kept; of every other run only those of
one call at a time, and a few numbers per row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyseq.backends import RunOptions
from polyseq.backends import backend as find_backend
from polyseq.backends.options import DEFAULTS
from polyseq.context import Context
from polyseq.errors import EmptyBatch, PolyseqWarning
from polyseq.explain.verify_order import CellOrder
from polyseq.explain.verify_report import TOLERANCE, Distances, Report, judge
from polyseq.explain.verify_runs import Rows, Run, all_runs, calls
from polyseq.model import Model
from polyseq.outputs import Outputs
from polyseq.split import Ubatch

MOST_ROWS = 512  # rows compared, spread over all rows: 100 MB of logits where a vocabulary has 49152 tokens

Progress = Callable[[str, int, int], None]  # what is running, rows done, rows in all


@dataclass(frozen=True, slots=True)
class Prompts:
    """What every run computes, and which rows of it are compared."""

    tokens: tuple[NDArray[np.int32], ...]  # [n_prompt] each
    compared: tuple[NDArray[np.bool_], ...]  # [n_prompt] each

    @property
    def lengths(self) -> list[int]:
        return [len(t) for t in self.tokens]

    @staticmethod
    def of(prompts: Sequence[ArrayLike], most_rows: int) -> Prompts:
        """Pure. Every row is compared, or where there are more than `most_rows` every k-th and all last ones.

        Raises `EmptyBatch`.
        """
        tokens = tuple(np.asarray(p, np.int32) for p in prompts)
        if not tokens or min(map(len, tokens)) == 0:
            raise EmptyBatch("verify needs at least one prompt, and at least one token in each")
        step = -(-sum(map(len, tokens)) // most_rows)
        return Prompts(tokens, tuple((len(t) - 1 - np.arange(len(t))) % step == 0 for t in tokens))


def verify(
    model: Model,
    prompts: Sequence[ArrayLike],
    *,
    backend: str = "auto",
    options: RunOptions = DEFAULTS,
    n_ctx: int = 0,
    tolerance: float = TOLERANCE,
    most_rows: int = MOST_ROWS,
    progress: Progress | None = None,
) -> Report:
    """Changes nothing. Compares the logits of every way to compute the prompts with those of each prompt alone.

    prompts: token columns [n_prompt] i32, at most 256. n_ctx cells in all for the runs together, 0 = as many as they
    need. tolerance: see `judge`. Raises `EmptyBatch`, `BadSeqCount`, `NoSlot`, `BatchError`, `CapabilityError`.
    """
    work = Prompts.of(prompts, most_rows)
    longest, n_rows = max(work.lengths), sum(work.lengths)
    solo_run = Run("solo", together=False, unified=False, interleaved=False, n_batch=longest, n_ubatch=longest)
    runs = all_runs(work.lengths)
    done = 0

    def tick(name: str, n: int) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress(name, done, n_rows * (len(runs) + 1))

    solo: dict[tuple[int, int], NDArray[np.float32]] = {}  # (prompt, position) -> [n_vocab]
    for call in _computed(model, work, solo_run, backend=backend, options=options, n_ctx=0):
        for row in call.outputs.rows.tolist():
            solo[int(call.rows.i_prompt[row]), int(call.rows.pos[row])] = call.outputs.logits(row)
        tick(solo_run.name, len(call.rows.pos))
    distances = []
    for run in runs:
        tables, n_ubatches = [], 0
        for i_call, call in enumerate(_computed(model, work, run, backend=backend, options=options, n_ctx=n_ctx)):
            tables.append(_compare(i_call, call, solo))
            n_ubatches += len(call.ubatches)
            tick(run.name, len(call.rows.pos))
        distances.append(_joined(run, len(tables), n_ubatches, np.concatenate(tables)))
    same_bits = find_backend(backend).same_bits
    return judge(distances, n_prompts=len(work.tokens), n_rows=n_rows, tolerance=tolerance, same_bits=same_bits)


# ---- computing -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """One decode of a run."""

    rows: Rows
    ubatches: tuple[Ubatch, ...]
    in_order: tuple[NDArray[np.bool_], ...]  # [n_tokens] of each ubatch: see `CellOrder`
    outputs: Outputs


def _computed(
    model: Model, work: Prompts, run: Run, *, backend: str, options: RunOptions, n_ctx: int
) -> Iterator[Call]:
    """Runs call after call; nothing of a call is kept here."""
    ctx = _context(model, work, run, backend=backend, options=options, n_ctx=n_ctx)
    order = CellOrder(ctx.memory)
    for rows in calls(run, work.lengths):
        if not run.together and rows.pos[0] == 0:
            ctx.memory.clear()
            order.clear()
        seq = rows.i_prompt if run.together else np.zeros(len(rows.pos), np.intp)
        token, output = np.empty(len(seq), np.int32), np.empty(len(seq), np.bool_)
        for i in np.unique(rows.i_prompt):
            here = rows.i_prompt == i
            token[here], output[here] = work.tokens[i][rows.pos[here]], work.compared[i][rows.pos[here]]
        batch = ctx.batch()
        batch.extend(token, seq=seq, pos=rows.pos, output=output)
        ubatches = ctx.plan(batch).ubatches
        yield Call(rows, ubatches, tuple(map(order.take, ubatches)), ctx.decode(batch))


def _context(model: Model, work: Prompts, run: Run, *, backend: str, options: RunOptions, n_ctx: int) -> Context:
    longest, n_seqs = max(work.lengths), len(work.tokens) if run.together else 1
    needed = sum(work.lengths) if run.together and run.unified else longest * n_seqs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PolyseqWarning)  # sizes are chosen here, not asked for
        return Context(
            model,
            n_ctx=n_ctx if run.together and n_ctx else needed,
            n_seq_max=n_seqs,
            n_batch=run.n_batch,
            n_ubatch=run.n_ubatch,
            unified=run.unified,
            backend=backend,
            n_threads=options.n_threads,
            kv_type=options.kv_type,
        )


# ---- comparing -----------------------------------------------------------------------------------------

_TABLE = np.dtype(
    [(name, np.intp) for name in ("i_prompt", "pos", "i_call", "i_ubatch", "i_row", "n_tokens")]
    + [(name, np.float64) for name in ("max_abs", "relative", "kl")]
    + [("argmax_changed", np.bool_), ("in_order", np.bool_)]
)


def _compare(i_call: int, call: Call, solo: dict[tuple[int, int], NDArray[np.float32]]) -> NDArray[np.void]:
    """[n_outputs] of `_TABLE`, in order of computation."""
    lines = []
    for i_ubatch, (ubatch, in_order) in enumerate(zip(call.ubatches, call.in_order, strict=True)):
        for i_row in np.flatnonzero(ubatch.output).tolist():
            row = int(ubatch.batch_idxs[i_row])
            i_prompt, pos = int(call.rows.i_prompt[row]), int(call.rows.pos[row])
            found = row_distance(solo[i_prompt, pos], call.outputs.logits(row))
            lines.append((i_prompt, pos, i_call, i_ubatch, i_row, ubatch.n_tokens, *found, in_order[i_row]))
    return np.array(lines, _TABLE)


def row_distance(solo: NDArray[np.float32], other: NDArray[np.float32]) -> tuple[float, float, float, bool]:
    """Pure. (max abs difference, the same over the spread of solo, KL(solo || other) in nats, whether argmax differs).

    Both [n_vocab] f32. Infinite where a logit is not finite: no rounding leads there.
    """
    if np.array_equal(solo, other):
        return 0.0, 0.0, 0.0, False
    changed = bool(solo.argmax() != other.argmax())
    p, q = solo.astype(np.float64), other.astype(np.float64)
    if not (np.isfinite(p).all() and np.isfinite(q).all()):
        return np.inf, np.inf, np.inf, changed
    max_abs = float(np.abs(p - q).max())
    spread = float(p.std()) or 1.0
    log_p, log_q = _log_softmax(p), _log_softmax(q)
    return max_abs, max_abs / spread, max(0.0, float(np.exp(log_p) @ (log_p - log_q))), changed


def _log_softmax(row: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = row - row.max()
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result


def _joined(run: Run, n_calls: int, n_ubatches: int, table: NDArray[np.void]) -> Distances:
    return Distances(run, n_calls, n_ubatches, *(table[name] for name in _TABLE.names or ()))
