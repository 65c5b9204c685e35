"""Step 1: the caller's flat list of rows, in any order, for any sequences.

Enters: rows, one at a time (`add`) or as columns (`extend`). Leaves: growable columns that `check` reads. What a
row may hold is checked here only where the batch was told a limit; the full check happens before any cutting.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyseq.batch.column import Column
from polyseq.batch.intake import (
    AUTO_POS,
    SeqColumn,
    SeqIds,
    as_array,
    flag_column,
    ids_of_one_row,
    int_column,
    n_rows,
    seq_columns,
)
from polyseq.errors import (
    BadColumn,
    BadEmbedding,
    BadSeqId,
    BadToken,
    BatchTooLarge,
    NegativePosition,
    NoContent,
    StateMix,
)

HAS_TOKEN = 1
HAS_EMBD = 2
NO_SPAN = -1


class Batch:
    """A growable list of rows. Each row carries a token, an embedding or both, perhaps a hidden state, the set of
    sequences it belongs to, a position, and whether its output is wanted.

    Limits are optional; a context makes batches with its own (`Context.batch`):
    `n_tokens_max` rows, sequence ids below `n_seq_max`, token ids below `n_vocab`, embeddings of one of the widths
    `n_embd`, `n_pos` position sections (4 for M-RoPE). The first embedding fixes the width for the batch.
    """

    def __init__(
        self,
        n_tokens_max: int | None = None,
        *,
        n_seq_max: int | None = None,
        n_vocab: int | None = None,
        n_embd: int | tuple[int, ...] | None = None,
        n_pos: int = 1,
    ) -> None:
        self.n_tokens_max = n_tokens_max
        self.n_seq_max = n_seq_max
        self.n_vocab = n_vocab
        self.widths = (n_embd,) if isinstance(n_embd, int) else n_embd
        self.n_pos = n_pos
        self._token = Column(np.int32)
        self._content = Column(np.uint8)
        self._pos = Column(np.int32, width=n_pos)
        self._output = Column(np.bool_)
        self._seq_count = Column(np.int32)
        self._seq_ids = Column(np.int32)
        self._span = Column(np.int32)
        self._embd: Column[np.float32] | None = None  # only the rows that have one, in order
        self._state: Column[np.float32] | None = None

    def __len__(self) -> int:
        return len(self._token)

    # ---- rows in -------------------------------------------------------------------------------------

    def add(
        self,
        token: int | None = None,
        *,
        seq: SeqIds = 0,
        pos: int | Sequence[int] | None = None,
        output: bool = False,
        embd: ArrayLike | None = None,
        state: ArrayLike | None = None,
    ) -> int:
        """Changes the batch: adds one row and returns its index.

        `seq` is one id or a set of ids; `pos` None continues the row's smallest sequence after memory and batch,
        and an embedding row of a model with `n_pos` > 1 sections gives all of them.
        Raises a `BatchError` naming row, value and limit; the batch is then as before.
        """
        row = len(self)
        ids = ids_of_one_row(seq, row)
        if token is None and embd is None:
            raise NoContent(f"row {row} carries neither a token nor an embedding", row=row)
        if token is not None and not isinstance(token, int | np.integer):
            raise BadColumn(f"row {row}: a token is an id, not {token!r}", row=row)
        if token is not None and (token < 0 or (self.n_vocab is not None and token >= self.n_vocab)):
            raise BadToken(
                f"row {row}: token {token} is outside the vocabulary [0, {_or_open(self.n_vocab)})",
                row=row,
                value=token,
                limit=self.n_vocab,
            )
        for seq_id in ids:
            if seq_id < 0 or (self.n_seq_max is not None and seq_id >= self.n_seq_max):
                raise BadSeqId(
                    f"row {row}: sequence {seq_id} is outside [0, {_or_open(self.n_seq_max)}) (n_seq_max)",
                    row=row,
                    seq_id=seq_id,
                    value=seq_id,
                    limit=self.n_seq_max,
                )
        if isinstance(pos, int | np.integer) and pos < 0:
            raise NegativePosition(f"row {row}: position {pos} is negative", row=row, value=pos, limit=0)
        self.extend(
            None if token is None else [token],
            seq=[ids],
            pos=None if pos is None else np.atleast_1d(np.asarray(pos))[:, None] if embd is not None else [pos],
            output=output,
            embd=None if embd is None else np.asarray(embd)[None],
            state=None if state is None else np.asarray(state)[None],
        )
        return row

    def extend(
        self,
        tokens: ArrayLike | None = None,
        *,
        seq: SeqColumn = 0,
        pos: ArrayLike | None = None,
        output: bool | ArrayLike = False,
        embd: ArrayLike | None = None,
        state: ArrayLike | None = None,
        span: bool = False,
    ) -> None:
        """Changes the batch: adds many rows from columns, without Python work per token.

        tokens [n] ints; embd [n, n_embd] and state [n, n_state] floats; seq one id for all rows, a `set` of ids for
        all rows, [n] ids, or n lists of ids; pos [n] (or [n_pos, n] for embedding rows of M-RoPE models), None to
        continue each sequence; output one flag or [n] flags. Ids and positions are judged later, by the check.
        span: these rows, of one sequence or one set of them, see each other in both directions, and come in one ubatch.
        Raises `BadColumn`, `BatchTooLarge`, `BadEmbedding`; the batch is then as before.
        """
        row0 = len(self)
        token_col = None if tokens is None else int_column("tokens", tokens, row0, BadToken)
        embd_rows = None if embd is None else self._float_rows("embd", embd, self._embd, self.widths)
        state_rows = None if state is None else self._float_rows("state", state, self._state, None)
        n = n_rows(token_col, embd_rows, state_rows, seq)
        for name, rows in (("embd", embd_rows), ("state", state_rows)):
            if rows is not None and len(rows) != n:
                raise BadColumn(f"{name} has {len(rows)} rows where {n} are added", value=len(rows), limit=n)
        self._check_room(row0, n)
        if span and not isinstance(seq, int | np.integer | set | frozenset):
            raise BadColumn(f"row {row0}: the rows of a span belong together; give seq as one id or one set of ids")
        counts, ids = seq_columns(seq, n, row0)
        pos_rows = self._pos_rows(pos, n, row0, has_token=token_col is not None)
        flags = flag_column(output, n)
        if n == 0:
            return
        if row0 and (self._state is None) != (state_rows is None):
            raise StateMix(f"row {row0}: either every row carries a hidden state or none does", row=row0)

        content = (HAS_TOKEN if token_col is not None else 0) | (HAS_EMBD if embd_rows is not None else 0)
        self._token.extend(n, 0 if token_col is None else token_col)
        self._content.extend(n, content)
        self._pos.extend(n, pos_rows)
        self._output.extend(n, flags)
        self._seq_count.extend(n, counts)
        self._seq_ids.extend(n if isinstance(ids, int) else len(ids), ids)
        self._span.extend(n, np.full(n, row0, np.int32) if span else NO_SPAN)
        if embd_rows is not None:
            self._embd = _append_rows(self._embd, embd_rows)
        if state_rows is not None:
            self._state = _append_rows(self._state, state_rows)

    def clear(self) -> None:
        """Changes the batch: no rows, and no width fixed."""
        for column in (self._token, self._content, self._pos, self._output, self._seq_count, self._seq_ids, self._span):
            column.clear()
        self._embd = self._state = None

    # ---- columns out: views, valid until the next change ------------------------------------------------

    @property
    def one_content(self) -> int | None:
        """HAS_TOKEN | HAS_EMBD of every row; None where rows differ."""
        return self._content.constant

    @property
    def one_seq_each(self) -> bool:
        """True: each row was given one sequence id. False: perhaps not."""
        return self._seq_count.constant == 1

    @property
    def all_continue(self) -> bool:
        """Every row continues its sequence (AUTO_POS), none was given a position."""
        return self._pos.constant is not None

    @property
    def token(self) -> NDArray[np.int32]:
        """[n_rows] i32, 0 where a row has no token."""
        return self._token.values

    @property
    def content(self) -> NDArray[np.uint8]:
        """[n_rows] u8, HAS_TOKEN | HAS_EMBD."""
        return self._content.values

    @property
    def pos(self) -> NDArray[np.int32]:
        """[n_rows, n_pos] i32; AUTO_POS = continue the sequence."""
        return self._pos.values

    @property
    def output(self) -> NDArray[np.bool_]:
        """[n_rows] whether the row's output is wanted."""
        return self._output.values

    @property
    def seq_count(self) -> NDArray[np.int32]:
        """[n_rows] i32 how many ids each row has in `seq_ids`."""
        return self._seq_count.values

    @property
    def seq_ids(self) -> NDArray[np.int32]:
        """[sum(seq_count)] i32 the ids of all rows, row after row."""
        return self._seq_ids.values

    @property
    def span(self) -> NDArray[np.int32] | None:
        """[n_rows] i32, the first row of the span that a row is in, NO_SPAN; None where there are no spans."""
        return None if self._span.constant is not None else self._span.values

    @property
    def embd(self) -> NDArray[np.float32] | None:
        """[rows with an embedding, n_embd] f32."""
        return None if self._embd is None else self._embd.values

    @property
    def state(self) -> NDArray[np.float32] | None:
        """[n_rows, n_state] f32."""
        return None if self._state is None else self._state.values

    # ---- the parts of extend ----------------------------------------------------------------------------

    def _check_room(self, row0: int, n: int) -> None:
        if self.n_tokens_max is not None and row0 + n > self.n_tokens_max:
            raise BatchTooLarge(
                f"{n} rows after {row0} make {row0 + n}, the batch holds {self.n_tokens_max} (n_batch); "
                f"{self.n_tokens_max - row0} more would fit",
                row=self.n_tokens_max,
                value=row0 + n,
                limit=self.n_tokens_max,
            )

    def _float_rows(
        self, name: str, values: ArrayLike, column: Column[np.float32] | None, widths: tuple[int, ...] | None
    ) -> NDArray[np.float32]:
        rows = as_array(name, values)
        if rows.ndim != 2 or rows.dtype.kind not in "fiu":
            raise BadColumn(f"{name} must be [n, width] floats, not {rows.dtype} {rows.shape}", value=rows.shape)
        allowed = widths if column is None else (column.values.shape[1],)
        if allowed is not None and rows.shape[1] not in allowed:
            raise BadEmbedding(
                f"row {len(self)}: {name} is {rows.shape[1]} wide, this batch takes {' or '.join(map(str, allowed))}",
                row=len(self),
                value=rows.shape[1],
                limit=allowed,
            )
        return rows.astype(np.float32, copy=False)

    def _pos_rows(self, pos: ArrayLike | None, n: int, row0: int, *, has_token: bool) -> NDArray[np.int32] | int:
        """[n, n_pos] i32 from what the caller gave, or AUTO_POS for all."""
        if pos is None:
            return int(AUTO_POS)
        column = int_column("pos", pos, row0, NegativePosition, ndim=(1, 2))
        sections = 1 if has_token else self.n_pos
        if column.ndim == 1 and sections == 1 and len(column) == n:
            return column[:, None]
        if column.shape == (sections, n):
            return column.T
        raise BadColumn(
            f"row {row0}: pos has shape {column.shape}; {n} {'token' if has_token else 'embedding'} rows take "
            + (f"[{n}]" if sections == 1 else f"[{sections}, {n}], one line per section"),
            row=row0,
            value=column.shape,
            limit=(sections, n),
        )


def _append_rows(column: Column[np.float32] | None, rows: NDArray[np.float32]) -> Column[np.float32]:
    column = Column(np.float32, width=rows.shape[1]) if column is None else column
    column.extend(len(rows), rows)
    return column


def _or_open(limit: int | None) -> str:
    return "..." if limit is None else str(limit)
