"""Step 2: sanitise a batch before anything is cut. Nothing in memory changes.

Enters: a `Batch`, the limits of model and context, what the memory holds of each sequence. Leaves: a `CheckedBatch`,
or the first failure in the order of the functions below, as an error that names row, sequence, value and limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.batch.batch import HAS_EMBD, HAS_TOKEN, Batch
from polyseq.batch.by_sequence import BySequence
from polyseq.batch.checked import CheckedBatch
from polyseq.batch.positions import SeqRanges, check_positions, continue_all, resolve_positions
from polyseq.batch.seqset import MAX_SEQ
from polyseq.errors import (
    BadColumn,
    BadEmbedding,
    BadSeqCount,
    BadSeqId,
    BadToken,
    BatchTooLarge,
    ContentMix,
    EmptyBatch,
    NegativePosition,
    NoContent,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a model and a context allow in one call."""

    n_vocab: int
    n_seq_max: int
    n_pos: int = 1
    n_batch: int | None = None
    n_embd: int | None = None  # the width embeddings must have
    allow_mixed: bool = False  # token rows beside embedding rows
    output_all: bool = False  # every row must be an output


def check(batch: Batch, limits: Limits, ranges: SeqRanges) -> CheckedBatch:
    """Pure. The batch as sound columns; raises the `BatchError` of the first failed check."""
    if not 1 <= limits.n_seq_max <= MAX_SEQ:
        raise BadSeqCount(
            f"n_seq_max is {limits.n_seq_max}, it must be 1 to {MAX_SEQ}",
            value=limits.n_seq_max,
            limit=MAX_SEQ,
        )
    if len(batch) == 0:
        raise EmptyBatch("the batch has no rows")
    _check_size(batch, limits)
    is_embd = _check_content(batch, limits)
    _check_tokens(batch, limits)
    ids, offsets = _check_seq_ids(batch, limits)
    by_seq = BySequence.of(ids, offsets)
    if batch.all_continue and offsets is None:  # positions that are made here need no check
        pos = continue_all(by_seq, limits.n_pos, ranges)
        _check_embeddings(batch, limits)
    else:
        pos = resolve_positions(batch.pos, ids, offsets, by_seq, ranges)
        _check_not_negative(pos)
        _check_embeddings(batch, limits)
        has_token = (batch.content & HAS_TOKEN).view(np.bool_) if limits.n_pos > 1 else None
        check_positions(pos[0], by_seq, has_token, ranges, coupled=offsets is not None)

    return CheckedBatch(
        n_seq_max=limits.n_seq_max,
        token=None if batch.one_content == HAS_EMBD else batch.token.copy(),
        embd=_dense_embd(batch),
        state=None if batch.state is None else batch.state.copy(),
        is_embd=is_embd,
        pos=pos,
        seq_ids=ids,
        shared_offsets=offsets,
        output=np.ones(len(batch), np.bool_) if limits.output_all else batch.output.copy(),
        by_seq=by_seq,
        span=None if batch.span is None else batch.span.copy(),
    )


def _check_size(batch: Batch, limits: Limits) -> None:
    if limits.n_batch is not None and len(batch) > limits.n_batch:
        raise BatchTooLarge(
            f"the batch has {len(batch)} rows, n_batch is {limits.n_batch}; split it over several calls",
            row=limits.n_batch,
            value=len(batch),
            limit=limits.n_batch,
        )
    if batch.n_pos != limits.n_pos:
        raise BadColumn(
            f"the batch was made for {batch.n_pos} position sections, the model has {limits.n_pos}",
            value=batch.n_pos,
            limit=limits.n_pos,
        )


def _check_content(batch: Batch, limits: Limits) -> NDArray[np.bool_] | None:
    """Which rows are embedding rows, where the batch mixes the two; else None."""
    if batch.one_content:
        return None
    content = batch.content
    first = int(content[0])
    different = content != first
    if not different.any():
        if not first:
            raise NoContent("row 0 carries neither a token nor an embedding, and no other row does", row=0)
        return None
    mixed_kinds = bool((content == (HAS_TOKEN | HAS_EMBD)).any())
    if mixed_kinds or not limits.allow_mixed:
        row = int(np.argmax(different))
        raise ContentMix(
            f"row {row} carries {_content_name(int(content[row]))}, row 0 {_content_name(first)}: "
            + ("rows with both cannot stand beside others" if mixed_kinds else "mixing them needs allow_mixed"),
            row=row,
            value=int(content[row]),
            limit=first,
        )
    if not content.all():
        row = int(np.argmin(content))
        raise NoContent(f"row {row} carries neither a token nor an embedding", row=row)
    is_embd: NDArray[np.bool_] = content == HAS_EMBD
    return is_embd


def _content_name(content: int) -> str:
    return ("nothing", "a token", "an embedding", "a token and an embedding")[content]


def _check_tokens(batch: Batch, limits: Limits) -> None:
    token = batch.token
    as_unsigned = token.view(np.uint32)  # a negative id is above every vocabulary
    if as_unsigned[as_unsigned.argmax()] >= limits.n_vocab:
        row = int(np.argmax(as_unsigned >= limits.n_vocab))
        raise BadToken(
            f"row {row}: token {token[row]} is outside the vocabulary [0, {limits.n_vocab})",
            row=row,
            value=int(token[row]),
            limit=limits.n_vocab,
        )


def _check_seq_ids(batch: Batch, limits: Limits) -> tuple[NDArray[np.int32], NDArray[np.int64] | None]:
    """(ids of all rows, sorted and without repeats inside a row; [n_rows + 1] their offsets if rows are shared)."""
    ids = batch.seq_ids
    if not batch.one_seq_each and batch.seq_count.min() < 1:
        row = int(np.argmin(batch.seq_count))
        raise BadSeqId(f"row {row} belongs to no sequence", row=row)
    as_unsigned = ids.view(np.uint32)
    if as_unsigned[as_unsigned.argmax()] >= limits.n_seq_max:
        i = int(np.argmax(as_unsigned >= limits.n_seq_max))
        row = int(np.searchsorted(np.cumsum(batch.seq_count), i, side="right"))
        raise BadSeqId(
            f"row {row}: sequence {ids[i]} is outside [0, {limits.n_seq_max}) (n_seq_max)",
            row=row,
            seq_id=int(ids[i]),
            value=int(ids[i]),
            limit=limits.n_seq_max,
        )
    if len(ids) == len(batch):
        return ids.copy(), None
    counts = batch.seq_count
    rows = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((ids, rows))
    ids, rows = ids[order], rows[order]
    keep = np.concatenate(([True], (np.diff(ids) != 0) | (np.diff(rows) != 0)))
    unique_counts = np.bincount(rows[keep], minlength=len(counts))
    if np.count_nonzero(keep) == len(batch):
        return ids[keep], None
    return ids[keep], np.concatenate(([0], np.cumsum(unique_counts)))


def _check_not_negative(pos: NDArray[np.int32]) -> None:
    if pos.reshape(-1)[pos.argmin()] < 0:
        row = int(np.argmax((pos < 0).any(axis=0)))
        value = int(pos[:, row].min())
        raise NegativePosition(f"row {row}: position {value} is negative", row=row, value=value, limit=0)


def _check_embeddings(batch: Batch, limits: Limits) -> None:
    if batch.embd is not None:
        rows = (batch.content & HAS_EMBD).nonzero()[0]
        width = batch.embd.shape[1]
        if limits.n_embd is not None and width != limits.n_embd:
            raise BadEmbedding(
                f"row {rows[0]}: the embedding is {width} wide, the model takes {limits.n_embd}",
                row=int(rows[0]),
                value=width,
                limit=limits.n_embd,
            )
        _check_finite("embedding", batch.embd, rows)
    if batch.state is not None:
        _check_finite("hidden state", batch.state, np.arange(len(batch)))


def _check_finite(name: str, values: NDArray[np.float32], rows: NDArray[np.intp]) -> None:
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        row = int(rows[np.argmin(finite)])
        raise BadEmbedding(f"row {row}: the {name} holds NaN or infinity", row=row)


def _dense_embd(batch: Batch) -> NDArray[np.float32] | None:
    """[n_rows, n_embd], zeros for rows without one."""
    if batch.embd is None:
        return None
    if len(batch.embd) == len(batch):
        return batch.embd.copy()
    dense = np.zeros((len(batch), batch.embd.shape[1]), np.float32)
    dense[(batch.content & HAS_EMBD) != 0] = batch.embd
    return dense
