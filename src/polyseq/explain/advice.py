"""Why not, and what would do: from any refusal to a sentence and to changes that a program can apply.

Enters: an error, which carries the call it is about; what a caller gives beside it goes first. Leaves: an `Advice`.
Needs steps 1 to 4 only, no model; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from polyseq import errors as e
from polyseq.batch import Batch, FlatBatch
from polyseq.explain import batch_rules, later_rules
from polyseq.explain.changes import Change
from polyseq.explain.situation import Rule, Situation
from polyseq.memory import Refused, Trial


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about one refusal. Each of `changes` alone is enough to undo it; the mildest comes first."""

    code: str  # of the error
    why: str
    changes: tuple[Change, ...]

    @property
    def text(self) -> str:
        """One sentence."""
        return f"{self.why}: {'; or '.join(map(str, self.changes))}" if self.changes else self.why

    def to_json(self) -> dict[str, Any]:
        """Pure. Plain lists and numbers."""
        changes = [{"change": type(c).__name__, **asdict(c)} for c in self.changes]
        return {"code": self.code, "text": self.text, "changes": changes}


def advise(
    error: e.PolyseqError,
    *,
    refused: Refused | None = None,
    asked: Mapping[str, Any] | None = None,
) -> Advice:
    """Pure. What would make the refused call succeed.

    An error that a context raised needs nothing beside it: it knows its batch and memory, and is answered for what
    these hold now. `refused`: the same, where a step was called by hand; `asked`: the keywords of a `Context` that
    could not be made. Where something is missing the advice says less, never something untried.
    """
    rule = next(_RULES[kind] for kind in type(error).__mro__ if kind in _RULES)
    call = refused or error.refused
    if isinstance(call, Refused):
        with call.memory.lock:
            trial = Trial(call.memory, call.settings)
            why, changes = rule(error, Situation(_rows(call), trial, asked))
    else:
        why, changes = rule(error, Situation(asked=asked))
    return Advice(error.code, why, tuple(changes))


def _rows(call: Refused) -> Batch | None:
    if not isinstance(call.batch, FlatBatch):
        return call.batch
    try:
        return call.batch.to_batch(n_pos=call.memory.n_pos)
    except e.BatchError:  # that is what was refused
        return None


def _only(why: str) -> Rule:
    return lambda error, situation: (why, [])


_RULES: dict[type[BaseException], Rule] = {
    e.PolyseqError: _only("the message says what is wrong"),
    e.BatchError: _only("the message names the row and the limit"),
    e.EmptyBatch: _only("add at least one row before decoding"),
    e.BadSeqCount: batch_rules.bad_seq_count,
    e.BatchTooLarge: batch_rules.too_large,
    e.BadColumn: _only("give every column one entry per row, in a batch made by Context.batch()"),
    e.ContentMix: batch_rules.content_mix,
    e.NoContent: batch_rules.drop_row("each row needs a token or an embedding"),
    e.StateMix: batch_rules.state_mix,
    e.BadToken: batch_rules.drop_row("the token is not of this model's vocabulary; was it another model's tokenizer?"),
    e.BadSeqId: batch_rules.bad_seq_id,
    e.NegativePosition: batch_rules.negative_position,
    e.BadEmbedding: batch_rules.bad_embedding,
    e.MemoryPosition: batch_rules.memory_position,
    e.PositionGap: batch_rules.position_gap,
    e.MropeTokenPosition: batch_rules.mrope_position,
    e.MropeEmbdPosition: batch_rules.mrope_position,
    e.CoupledDiverged: batch_rules.coupled_diverged,
    e.PositionDecreasing: batch_rules.position_decreasing,
    e.SequenceTooLong: batch_rules.sequence_too_long,
    e.BeyondModel: batch_rules.beyond_model,
    e.SharedRow: batch_rules.shared_row,
    e.SplitError: later_rules.split,
    e.CoupledSequences: later_rules.coupled_sequences,
    e.SequenceError: _only(
        "nothing changed; use ids below n_seq_max, and copy parts of a sequence only in a unified cache"
    ),
    e.SavedStateError: later_rules.saved_state,
    e.NoSlot: later_rules.no_slot,
    e.CapabilityError: later_rules.capability,
    e.ContextError: later_rules.context,
    e.Aborted: later_rules.aborted,
    e.NotFinite: later_rules.not_finite,
    e.PartlyDecoded: later_rules.partly_decoded,
    e.OutputError: later_rules.output,
    e.InvalidModelFile: _only("the file is damaged or no GGUF; get it again"),
    e.UnsupportedModel: _only("use a model of an architecture and of tensor types that polyseq runs"),
    e.UnknownModel: _only("give a path to a GGUF file, a hub id, or a name that `polyseq pull` lists"),
    e.FetchError: _only("check the connection and try again, or give the path of a file that is there"),
    e.TokenizerError: _only("give text without lone surrogates, and token ids of this vocabulary"),
    e.TemplateError: _only("use the prompt as it is, without the chat template, or other messages"),
    e.SamplingError: _only("the message names the parameter and its range"),
    e.UnknownRequest: _only("give a number that `submit` returned"),
    e.ForkedMidway: _only("make a new context in the child, or fork while no thread computes"),
}
