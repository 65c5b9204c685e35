"""The sizes of a context: what was asked for, and what is in effect."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

from polyseq.batch.seqset import MAX_SEQ
from polyseq.errors import BadSeqCount, ContextError, PolyseqWarning

DEFAULT_N_BATCH = 2048
DEFAULT_N_UBATCH = 512


@dataclass(frozen=True, slots=True)
class ContextSizes:
    """Effective values, and a sentence for each that is not what was asked for."""

    n_ctx: int  # cells in all
    n_ctx_seq: int  # cells per stream
    n_seq_max: int
    n_batch: int
    n_ubatch: int
    unified: bool
    notes: tuple[str, ...]


def effective_sizes(
    *, n_ctx: int, n_ctx_train: int, n_seq_max: int, n_batch: int | None, n_ubatch: int | None, unified: bool
) -> ContextSizes:
    """The sizes that work together; None = a default that fits; warns once of each clamping of what was asked for.

    Raises `ContextError`, `BadSeqCount`.
    """
    check_asked(n_ctx=n_ctx, n_seq_max=n_seq_max, n_batch=n_batch, n_ubatch=n_ubatch)
    notes = []
    if n_ctx == 0:
        n_ctx = n_ctx_train
        notes.append(f"n_ctx 0: the model's own {n_ctx} cells")
    n_ctx_seq = n_ctx if unified else n_ctx // n_seq_max
    if n_ctx_seq == 0:
        raise ContextError(
            f"n_ctx {n_ctx} over n_seq_max {n_seq_max} streams leaves no cell for a sequence",
            settings={"n_ctx": n_ctx, "n_seq_max": n_seq_max, "unified": unified},
        )
    clamps = []
    if n_ctx_seq > n_ctx_train:
        clamps.append(f"a sequence can have {n_ctx_seq} positions, but the model was trained for {n_ctx_train}")
    if not unified and n_ctx % n_seq_max:
        clamps.append(f"n_ctx {n_ctx} over {n_seq_max} streams: {n_ctx_seq} cells each, {n_ctx % n_seq_max} unused")
    n_batch = min(DEFAULT_N_BATCH, n_ctx) if n_batch is None else n_batch
    if n_batch > n_ctx:
        clamps.append(f"n_batch {n_batch} clamped to n_ctx {n_ctx}")
        n_batch = n_ctx
    n_ubatch = min(DEFAULT_N_UBATCH, n_batch) if n_ubatch is None else n_ubatch
    return _in_effect(ContextSizes(n_ctx, n_ctx_seq, n_seq_max, n_batch, n_ubatch, unified, tuple(notes)), clamps)


def encoder_sizes(
    *, n_ctx: int, n_ctx_train: int, n_seq_max: int, n_batch: int | None, n_ubatch: int | None, unified: bool
) -> ContextSizes:
    """As `effective_sizes`, for a model that keeps nothing: n_ctx is then how long one sequence may be.

    A sequence is computed at once, so that n_ubatch, left out, holds the longest that fits n_batch and the model.
    """
    check_asked(n_ctx=n_ctx, n_seq_max=n_seq_max, n_batch=n_batch, n_ubatch=n_ubatch)
    notes, clamps = [], []
    if n_ctx > n_ctx_train:
        clamps.append(f"n_ctx {n_ctx} clamped to the {n_ctx_train} positions of the model")
    n_ctx = min(n_ctx, n_ctx_train) or n_ctx_train
    n_batch = DEFAULT_N_BATCH if n_batch is None else n_batch
    if n_ubatch is None:
        n_ubatch = min(n_batch, max(DEFAULT_N_UBATCH, n_ctx))
    if unified:
        notes.append("unified: this model keeps nothing between calls, so there are no cells to share")
    return _in_effect(ContextSizes(n_ctx, n_ctx, n_seq_max, n_batch, n_ubatch, False, tuple(notes)), clamps)


def _in_effect(asked: ContextSizes, clamps: list[str]) -> ContextSizes:
    """With the n_ubatch that goes with n_batch. Warns once of each clamping of what was asked for."""
    n_batch, n_ubatch, notes = asked.n_batch, asked.n_ubatch, list(asked.notes)
    if n_ubatch == 0:
        n_ubatch = n_batch
        notes.append(f"n_ubatch 0: as n_batch, {n_batch}")
    if n_ubatch > n_batch:
        clamps = [*clamps, f"n_ubatch {n_ubatch} clamped to n_batch {n_batch}"]
        n_ubatch = n_batch
    for clamp in clamps:
        warnings.warn(clamp, PolyseqWarning, stacklevel=5)  # to whoever makes a context
    return replace(asked, n_ubatch=n_ubatch, notes=(*notes, *clamps))


def check_asked(*, n_ctx: int = 0, n_seq_max: int, n_batch: int | None, n_ubatch: int | None) -> None:
    """Pure. Raises `ContextError`, `BadSeqCount` for what no context can have."""
    asked = (("n_seq_max", n_seq_max, None), ("n_ctx", n_ctx, 0), ("n_batch", n_batch, 1), ("n_ubatch", n_ubatch, 0))
    for name, value, least in asked:
        if value is not None and (not hasattr(value, "__index__") or isinstance(value, bool)):
            raise ContextError(f"{name} is {value!r}, it must be a whole number", settings={name: value})
        if value is not None and least is not None and value < least:
            raise ContextError(f"{name} is {value}, it must be at least {least}", settings={name: value})
    if not 1 <= n_seq_max <= MAX_SEQ:
        raise BadSeqCount(f"n_seq_max is {n_seq_max}, it must be 1 to {MAX_SEQ}", value=n_seq_max, limit=MAX_SEQ)


class HasSizes:
    """What has sizes, and lets them be read one by one."""

    sizes: ContextSizes

    @property
    def n_ctx(self) -> int:
        """Cells in all, over all sequences."""
        return self.sizes.n_ctx

    @property
    def n_ctx_seq(self) -> int:
        """Cells one sequence can have: all of them when unified, else its share."""
        return self.sizes.n_ctx_seq

    @property
    def n_batch(self) -> int:
        """Most tokens in one call."""
        return self.sizes.n_batch

    @property
    def n_ubatch(self) -> int:
        """Most tokens in one computed block."""
        return self.sizes.n_ubatch

    @property
    def n_seq_max(self) -> int:
        """Sequences, ids 0 .. n_seq_max-1."""
        return self.sizes.n_seq_max

    @property
    def unified(self) -> bool:
        """One stream of cells for all sequences."""
        return self.sizes.unified

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each value that is not what was asked for."""
        return self.sizes.notes
