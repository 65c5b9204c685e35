"""The whole cut: whole sequences, as many to an ubatch as fit. Ours; llama.cpp cuts one by one, or not at all.

For encoders, whose rows see all rows of their sequence: attention is block-diagonal, so that sequences may share an
ubatch but none may be torn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from polyseq.batch.checked import CheckedBatch
from polyseq.errors import SequenceTooLong, SharedRow
from polyseq.split import reason
from polyseq.split.splitter import Cut, Splitter


@dataclass(frozen=True, slots=True)
class Whole:
    """First-fit by length: the longest sequence left, then each next longest that still fits.

    Sequences of equal length are neighbours. `n_seqs` counts them; `n_seq_tokens` is 0 where lengths differ.
    """

    name: ClassVar[str] = "whole"

    def check(self, batch: CheckedBatch, n_ubatch: int) -> None:
        """Pure. Raises `SharedRow`, or `SequenceTooLong` for a sequence above n_ubatch."""
        refuse_shared_rows(batch)
        refuse_long_sequences(batch, n_ubatch)

    def next_cut(self, splitter: Splitter, n_ubatch: int) -> Cut:
        """Pure."""
        batch = splitter.batch
        left = np.flatnonzero(splitter.set_used == 0)
        by_length = left[np.argsort(-splitter.set_sizes[left], kind="stable")]
        room, chosen = n_ubatch, []
        for k, size in zip(by_length.tolist(), splitter.set_sizes[by_length].tolist(), strict=True):
            if size <= room:
                chosen.append(k)
                room -= size
        sizes = splitter.set_sizes[chosen]
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rows = batch.set_rows[np.repeat(batch.set_offsets[chosen], sizes) + within]
        equal = bool((sizes == sizes[0]).all())
        return Cut(rows, len(chosen), int(sizes[0]) if equal else 0, equal_seqs=equal, reason=reason.FULL)


def refuse_shared_rows(batch: CheckedBatch) -> None:
    """Pure. Raises `SharedRow` for the first row of several sequences."""
    if batch.coupled:
        row = int(np.argmax(np.diff(batch.seq_offsets) > 1))
        raise SharedRow(
            f"row {row} is shared by several sequences; where sequences are computed whole, a row can have one", row=row
        )


def refuse_long_sequences(batch: CheckedBatch, n_ubatch: int, *, n_model: int | None = None) -> None:
    """Pure. Raises `SequenceTooLong` for the longest sequence, where it has more rows than one ubatch holds.

    n_model: how many tokens the model takes, where that is known: n_ubatch need not be set above it.
    """
    sizes = np.diff(batch.set_offsets)
    if sizes.max() <= n_ubatch:
        return
    k = int(np.argmax(sizes))
    row = int(batch.set_rows[batch.set_offsets[k]])
    seq_id = int(batch.first_seq[row])
    most = "" if n_model is None else f" (the model takes {n_model} at most)"
    raise SequenceTooLong(
        f"sequence {seq_id} has {sizes[k]} tokens, but n_ubatch is {n_ubatch} and all tokens of a sequence must be "
        f"computed at once; set n_ubatch to {sizes[k]} or more{most}, or shorten the text",
        row=row,
        seq_id=seq_id,
        value=int(sizes[k]),
        limit=n_ubatch,
    )
