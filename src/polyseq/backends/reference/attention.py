"""Attention over the cells that each row sees, as few large matrix products.

Enters: queries of one ubatch, K and V of one layer, a `KvView`. Leaves: [n_tokens, n_head * head_v] f32. The rows are
cut into blocks once per run and view: several whole streams of equally many rows, a tile of one stream's rows, or, in
a stream that sequences share, a tile of one sequence's rows or several short sequences of equally many rows; each with
only the cells that its rows see. Within a block all is one product; there is no loop over rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.reference.run import Run
from polyseq.graph import ops
from polyseq.memory.view import KvView

F32 = NDArray[np.float32]
Rows = slice | NDArray[np.intp]

MOST_SCORES = 1 << 22  # floats in one block's scores: 16 MB
MOST_ROWS = 256  # rows in one tile: a causal tile skips the cells after its last row
MOST_COPIED = 1 << 12  # cells that are copied so that sequences go together; with more, a call of its own costs less


@dataclass(frozen=True, slots=True)
class Block:
    """Rows computed together: `n_tok` rows of each of `n_s` streams over one span of cells, or of as many sequences of
    one stream, each over cells of its own."""

    n_s: int
    n_tok: int
    rows: Rows  # of the ubatch
    streams: slice
    cells: Rows  # [n_cells], or [n_s, n_cells]
    bias: F32  # [n_s, 1, 1, n_tok, n_cells] 0 where the row sees the cell, else -inf


def blocks(view: KvView, *, n_head: int) -> tuple[Block, ...]:
    """Pure. The ubatch's rows, each in one block, with at most `MOST_SCORES` scores (or one row) per block."""
    n_fit = max(1, MOST_SCORES // max(1, n_head * view.n_kv))
    if view.row_member is not None and len(view.streams) == 1:
        return _sequence_blocks(view, view.row_member, n_fit)
    order, offsets = _by_stream(view)
    n_tok = np.diff(offsets)
    out: list[Block] = []
    for i0, i1 in _runs(view.streams, n_tok):
        n_tile = min(n_fit, MOST_ROWS)
        n_together = n_fit // int(n_tok[i0]) if n_tok[i0] <= n_tile else 1
        for i in range(i0, i1, n_together):
            i_end = min(i + n_together, i1)
            start, stop = int(offsets[i]), int(offsets[i_end])
            step = n_tile if n_together == 1 else stop - start
            tiles = [slice(r, min(r + step, stop)) for r in range(start, stop, step)]
            out += [_block(view, slice(i, i_end), tile if order is None else order[tile]) for tile in tiles]
    return tuple(out)


def _by_stream(view: KvView) -> tuple[NDArray[np.intp] | None, NDArray[np.intp]]:
    """Pure. (rows stream by stream, None where they lie so; [n_streams + 1] where each stream's begin)."""
    n = np.bincount(view.row_stream, minlength=len(view.streams))
    apart = (view.row_stream[1:] < view.row_stream[:-1]).any()
    return view.row_stream.argsort(kind="stable") if apart else None, np.concatenate(([0], np.cumsum(n)))


def _sequence_blocks(view: KvView, row_member: NDArray[np.intp], n_fit: int) -> tuple[Block, ...]:
    """Pure. One stream that sequences share: a sequence's rows see none of the other sequences' cells."""
    order = row_member.argsort(kind="stable")
    edges = [0, *(np.flatnonzero(np.diff(row_member[order])) + 1).tolist(), len(order)]
    n_tile = min(n_fit, MOST_ROWS)
    tiles = [order[r : min(r + n_tile, stop)] for start, stop in pairwise(edges) for r in range(start, stop, n_tile)]
    return tuple(block for n_tok, some in groupby(tiles, len) for block in _together(view, list(some), n_tok, n_fit))


def _together(view: KvView, tiles: list[NDArray[np.intp]], n_tok: int, n_fit: int) -> Iterator[Block]:
    """Pure. Tiles of `n_tok` rows each: as many in one block as scores and copied cells allow."""
    visible = view.visible(np.concatenate(tiles)).reshape(len(tiles), n_tok, -1)
    n_seen = visible.any(axis=1).sum(axis=1)
    most = max(1, min(n_fit // n_tok, MOST_COPIED // max(1, int(n_seen.max()))))
    for i in range(0, len(tiles), most):
        some = tiles[i : i + most]
        alone = len(some) == 1
        yield _block(view, slice(0, 1), some[0]) if alone else _side_by_side(view, some, visible[i : i + most])


def _side_by_side(view: KvView, tiles: list[NDArray[np.intp]], visible: NDArray[np.bool_]) -> Block:
    """Pure. Sequences of one stream; where one has fewer cells than another, a cell of its own stands in, unseen.

    visible [n_tiles, n_tok, n_kv].
    """
    seen = visible.any(axis=1)
    n_seen = seen.sum(axis=1)
    cells = np.argsort(~seen, axis=1, kind="stable")[:, : max(1, int(n_seen.max()))]
    is_own = np.arange(cells.shape[1]) < n_seen[:, None]
    cells = np.where(is_own, cells, cells[:, :1])
    sees = np.take_along_axis(visible, cells[:, None], axis=2) & is_own[:, None]
    bias = np.where(sees, np.float32(0), np.float32(-np.inf))[:, None, None]
    first = int(view.streams[0])
    return Block(len(tiles), visible.shape[1], np.concatenate(tiles), slice(first, first + 1), cells, bias)


def attention(op: ops.Attention, run: Run, q: F32, view: KvView) -> F32:
    """Pure. See `ops.Attention`."""
    out = np.empty((len(q), op.n_head * op.head_v), np.float32)
    k, v = run.cache.k[op.il], run.cache.v[op.il]
    for b in run.shared(("blocks", op.n_head, id(view)), lambda: blocks(view, n_head=op.n_head)):
        out[b.rows] = _attend(op, b, q[b.rows], _cells(k, b), _cells(v, b))
    return out


def _cells(x: F32, b: Block) -> F32:
    """Pure. [n_stream, n_head_kv, n_cells, head] -> those of the block, [n_s, n_head_kv, n_cells, head]."""
    if isinstance(b.cells, slice) or b.cells.ndim == 1:
        some: F32 = x[b.streams, :, b.cells]
        return some
    apart: F32 = x[b.streams.start].take(b.cells, axis=1).swapaxes(0, 1)
    return apart


def _runs(streams: NDArray[np.int32], n_tok: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Pure. Index ranges of neighbouring streams (s, s + 1, ...) with equally many rows, leaving out empty ones."""
    breaks = np.flatnonzero((np.diff(streams) != 1) | (np.diff(n_tok) != 0)) + 1
    edges = [0, *breaks.tolist(), len(streams)]
    return [(i0, i1) for i0, i1 in pairwise(edges) if i1 > i0 and n_tok[i0] > 0]


def _block(view: KvView, i: slice, rows: Rows) -> Block:
    """Pure. These rows of the streams with indices `i`."""
    n_s = i.stop - i.start
    visible = view.visible(rows)
    n_tok = len(visible) // n_s
    seen = np.flatnonzero(visible.any(axis=0))
    # With nothing to see one hidden cell stands in, as a softmax needs a cell.
    cells: Rows = slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(0, 1)
    if isinstance(cells, slice) and cells.stop - cells.start > 2 * len(seen) > 0:
        cells = seen  # others' cells lie between: a copy is cheaper than computing with them
    bias = np.where(visible[:, cells], np.float32(0), np.float32(-np.inf)).reshape(n_s, 1, 1, n_tok, -1)
    first = int(view.streams[i.start])
    return Block(n_s, n_tok, rows, slice(first, first + n_s), cells, bias)


def _attend(op: ops.Attention, b: Block, q: F32, k: F32, v: F32) -> F32:
    """Pure. q [n_s * n_tok, n_head * head_k], k and v [n_s, n_head_kv, n_cells, head] -> [n_s * n_tok, ...].

    Query heads that share a KV head lie side by side as rows of one matrix.
    """
    n_group = op.n_head // op.n_head_kv
    heads = (q * np.float32(op.scale)).reshape(b.n_s, b.n_tok, op.n_head_kv, n_group, op.head_k)
    queries = heads.transpose(0, 2, 3, 1, 4).reshape(b.n_s, op.n_head_kv, n_group * b.n_tok, op.head_k)
    scores: F32 = np.matmul(queries, k.swapaxes(-1, -2))
    by_row = scores.reshape(b.n_s, op.n_head_kv, n_group, b.n_tok, -1)
    by_row += b.bias
    out = _softmax_weighted(scores, v)
    # Not finite: a row that sees nothing, or NaN and infinity in cells. Rare, so looked at only afterwards.
    if not np.isfinite(out).all():
        out = _attend_guarded(b, queries, k, v)
    return (
        out.reshape(b.n_s, op.n_head_kv, n_group, b.n_tok, op.head_v)
        .transpose(0, 3, 1, 2, 4)
        .reshape(b.n_s * b.n_tok, -1)
    )


def _softmax_weighted(scores: F32, v: F32) -> F32:
    """Changes scores [..., n_rows, n_cells] into weights; returns softmax(scores) v [..., n_rows, head_v]."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    out: F32 = scores @ v
    out /= scores.sum(axis=-1, keepdims=True)
    return out


def _attend_guarded(b: Block, queries: F32, k: F32, v: F32) -> F32:
    """Pure. As `_attend`, whatever is in cells that a row does not see; zeros for a row that sees nothing.

    A row that does see a non-finite V gives NaN in that dim.
    """
    seen = b.bias == 0  # [n_s, 1, 1, n_tok, n_cells]
    scores: F32 = np.matmul(queries, k.swapaxes(-1, -2))
    by_row = scores.reshape(*queries.shape[:2], -1, *seen.shape[-2:])
    by_row[...] = np.where(seen, by_row, np.float32(-np.inf))
    sees_any = np.broadcast_to(seen.any(axis=-1), by_row.shape[:-1]).reshape(scores.shape[:-1])
    scores[~sees_any] = 0
    finite = np.isfinite(v)
    out = _softmax_weighted(scores, np.where(finite, v, np.float32(0)))
    # How many non-finite values each row sees, per dim: the same for every head of a group.
    n_bad = seen[:, 0].astype(np.float32) @ (~finite).astype(np.float32)  # [n_s, n_head_kv, n_tok, head_v]
    touched = np.broadcast_to((n_bad > 0)[:, :, None], (*by_row.shape[:-1], v.shape[-1])).reshape(out.shape)
    out[touched] = np.nan
    out[~sees_any] = 0
    return out
