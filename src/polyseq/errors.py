"""Every error polyseq raises, each naming the row, sequence, value or limit it is about.

Stands before all steps and imports nothing. Each class carries a `code`: a short stable word for programs
(`--json`, logs, replays), while the text is for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


class PolyseqError(Exception):
    """Base of all errors raised on purpose by polyseq. `refused`: the call it is about, where a context knows it."""

    code: ClassVar[str] = "error"
    refused: Any = None  # memory.Refused; `polyseq.explain.advice.advise` reads it


class PolyseqWarning(UserWarning):
    """Something was asked for and something else is in effect; said once."""


# ---- 1, 2: the batch and its checks ------------------------------------------------------------------


class BatchError(PolyseqError, ValueError):
    """A batch was refused; nothing changed. `row`, `seq_id`, `value` and `limit` are set where they apply."""

    code = "batch"

    def __init__(
        self,
        message: str,
        *,
        row: int | None = None,
        seq_id: int | None = None,
        value: object = None,
        limit: object = None,
    ) -> None:
        super().__init__(message)
        self.row = row
        self.seq_id = seq_id
        self.value = value
        self.limit = limit


class EmptyBatch(BatchError):
    """A batch without rows."""

    code = "empty"


class BadSeqCount(BatchError):
    """`n_seq_max` outside 1..256."""

    code = "n_seq_max"


class BatchTooLarge(BatchError):
    """More rows than `n_batch` / `n_tokens_max` allows."""

    code = "batch_size"


class BadColumn(BatchError):
    """A column given to the batch has the wrong length, shape or type."""

    code = "bad_column"


class ContentMix(BatchError):
    """Rows do not all carry the same of token and embedding."""

    code = "content_mix"


class NoContent(BatchError):
    """A row carries neither token nor embedding."""

    code = "no_content"


class StateMix(BatchError):
    """Some rows carry a hidden state and some do not."""

    code = "state_mix"


class BadToken(BatchError):
    """A token id outside the vocabulary."""

    code = "bad_token"


class BadSeqId(BatchError):
    """A sequence id outside `[0, n_seq_max)`."""

    code = "bad_seq_id"


class NegativePosition(BatchError):
    """A position below 0."""

    code = "bad_pos"


class BadEmbedding(BatchError):
    """An embedding or state row of another width than the batch's, or with NaN or infinity in it."""

    code = "bad_embd"


class MemoryPosition(BatchError):
    """A sequence does not continue where the memory ends (one-section positions)."""

    code = "mem_pos"


class PositionGap(BatchError):
    """The positions of a sequence in the batch leave a hole."""

    code = "pos_gap"


class MropeTokenPosition(BatchError):
    """M-RoPE: a token row does not start after the memory's last position."""

    code = "mem_mrope_token"


class MropeEmbdPosition(BatchError):
    """M-RoPE: an embedding row starts before the memory's last position."""

    code = "mem_mrope_embd"


class CoupledDiverged(BatchError):
    """Sequences that share a row have different position ranges in memory."""

    code = "coupled_diverged"


class SequenceTooLong(BatchError):
    """A sequence that must be computed at once has more tokens than n_ubatch; `value` is the longest."""

    code = "sequence_too_long"


class BeyondModel(BatchError):
    """A position that the model has no row for."""

    code = "beyond_model"


class SharedRow(BatchError):
    """A row of several sequences, where each sequence is computed whole."""

    code = "shared_row"


class PositionDecreasing(BatchError):
    """The positions of a sequence decrease in batch order."""

    code = "pos_decreasing"


# ---- 3: splitting ------------------------------------------------------------------------------------


class SplitError(PolyseqError, ValueError):
    """A cut was asked for with sizes it cannot work with. `least`: the n_ubatch that it needs, where that would do."""

    code = "split"

    def __init__(self, message: str, *, least: int | None = None) -> None:
        super().__init__(message)
        self.least = least


class CoupledSequences(SplitError):
    """A row shared by several sequences, where every sequence has a stream of its own."""

    code = "coupled_sequential"


class SpanTooLong(SplitError):
    """A span, which is computed at once, has more rows than n_ubatch; `least` is how many."""

    code = "span_too_long"


# ---- 4: memory ---------------------------------------------------------------------------------------


class SequenceError(PolyseqError, ValueError):
    """A sequence operation that the memory cannot carry out; nothing changed."""

    code = "sequence"


class SavedStateError(PolyseqError, ValueError):
    """A saved state that is damaged, of another model or backend, or does not go into this memory; nothing changed.

    `seq_id`: the sequence that is in the way, where one is.
    """

    code = "saved_state"

    def __init__(self, message: str, *, seq_id: int | None = None) -> None:
        super().__init__(message)
        self.seq_id = seq_id


@dataclass(frozen=True, slots=True)
class Holder:
    """What one sequence holds of a stream: `n_cells` cells, positions `pos_min..pos_max`."""

    seq_id: int
    n_cells: int
    pos_min: int
    pos_max: int


class NoSlot(PolyseqError):
    """There is no room for all of a batch (llama.cpp's return code 1); nothing changed.

    `n_fit`: how many of its first rows would fit now (None: nobody has tried). `part`: which cache is full.
    `n_cells_fit`: where no row fits, the fewest cells of a stream that would hold all (None: not tried, or none would).
    A value where it is returned by `memory.init_batch`, an exception where `Context.decode` raises it.
    """

    code = "no_slot"

    def __init__(
        self,
        *,
        needed: int,
        free: int,
        largest_run: int,
        n_cells: int,
        stream: int,
        i_ubatch: int,
        holders: tuple[Holder, ...],
        part: str = "kv",
        n_fit: int | None = None,
        n_cells_fit: int | None = None,
    ) -> None:
        self.needed = needed
        self.free = free
        self.largest_run = largest_run
        self.n_cells = n_cells
        self.stream = stream
        self.i_ubatch = i_ubatch
        self.holders = holders
        self.part = part
        self.n_fit = n_fit
        self.n_cells_fit = n_cells_fit
        held = ", ".join(f"sequence {h.seq_id}: {h.n_cells} cells (p{h.pos_min}..{h.pos_max})" for h in holders)
        super().__init__(
            f"no slot: the batch needs {needed} cells of stream {stream}{' (window)' if part == 'kv_swa' else ''}, "
            f"{free} of {n_cells} are free (largest run {largest_run}); held by {held or 'nobody'}"
            + ("" if n_fit is None else f"; its first {n_fit} rows would fit" if n_fit else "; no row of it would fit")
            + ("" if n_cells_fit is None else f", a stream of {n_cells_fit} cells would hold all of it")
        )

    def with_fit(self, n_fit: int, n_cells_fit: int | None = None) -> NoSlot:
        """Pure. The same refusal, saying how many rows would fit, or where all would."""
        return NoSlot(
            needed=self.needed,
            free=self.free,
            largest_run=self.largest_run,
            n_cells=self.n_cells,
            stream=self.stream,
            i_ubatch=self.i_ubatch,
            holders=self.holders,
            part=self.part,
            n_fit=n_fit,
            n_cells_fit=n_cells_fit,
        )


# ---- 5: compute --------------------------------------------------------------------------------------


class CapabilityError(PolyseqError):
    """The model or the context cannot give what was asked; found before any work.

    `remedy`: keywords of a `Context` that would do, by name; empty where there are none.
    """

    code = "capability"

    def __init__(self, message: str, *, remedy: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.remedy: Mapping[str, Any] = remedy or {}


class ContextError(PolyseqError, ValueError):
    """A context was asked for with sizes that cannot work together. `settings`: those that it is about, by name."""

    code = "context"

    def __init__(self, message: str, *, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.settings: Mapping[str, Any] = settings or {}


class Aborted(PolyseqError):
    """`Context.abort` ended a call; the memory is as it was before the call."""

    code = "aborted"


class ForkedMidway(PolyseqError):
    """This process was forked while another thread computed with the context, which is of no use here."""

    code = "forked"


class NotFinite(PolyseqError):
    """A result is NaN or infinite, which `nan_guard` looks for; nothing of the call stays."""

    code = "not_finite"


class PartlyDecoded(PolyseqError):
    """A call that keeps what was finished (`on_error="keep_finished"`) ended early; `__cause__` says why.

    `kept` holds, per sequence, the positions `(first, last)` of this call that stay, `taken_back` those that do not.
    `outputs` are the call's `Outputs`, with the rows of the ubatches that were finished.
    """

    code = "partly_decoded"

    def __init__(
        self,
        message: str,
        *,
        kept: dict[int, tuple[int, int]],
        taken_back: dict[int, tuple[int, int]],
        n_ubatches: int,
        outputs: Any,
    ) -> None:
        super().__init__(message)
        self.kept = kept
        self.taken_back = taken_back
        self.n_ubatches = n_ubatches  # finished
        self.outputs = outputs  # polyseq.Outputs


# ---- 6: outputs --------------------------------------------------------------------------------------


class OutputError(PolyseqError, IndexError):
    """A result row was asked for that does not exist. `row`: of the batch of `n_rows`, where it was named."""

    code = "no_output"

    def __init__(self, message: str, *, row: int | None = None, n_rows: int = 0, n_outputs: int = 0) -> None:
        super().__init__(message)
        self.row = row
        self.n_rows = n_rows
        self.n_outputs = n_outputs


# ---- files, text, sampling ---------------------------------------------------------------------------


class ModelError(PolyseqError):
    """A model cannot be had or used."""

    code = "model"


class InvalidModelFile(ModelError, ValueError):
    """A file that is truncated, inconsistent or no GGUF at all."""

    code = "invalid_model_file"


class UnsupportedModel(ModelError):
    """A sound file that holds something polyseq does not run; names what."""

    code = "unsupported_model"


class UnknownModel(ModelError, LookupError):
    """Neither a file, nor a known name, nor a hub id."""

    code = "unknown_model"


class FetchError(ModelError, OSError):
    """A model could not be fetched, or what came is not what was expected."""

    code = "fetch"


class TokenizerError(PolyseqError, ValueError):
    """Text cannot be turned into tokens, or tokens into text, as asked."""

    code = "tokenizer"


class TemplateError(PolyseqError, ValueError):
    """A chat template is missing, broken, or refused the messages."""

    code = "chat_template"


class SamplingError(PolyseqError, ValueError):
    """A sampling parameter outside its range; names parameter, value and range."""

    code = "sampling"


# ---- requests ----------------------------------------------------------------------------------------


class UnknownRequest(PolyseqError, LookupError):
    """A request number that the engine never gave out."""

    code = "unknown_request"
