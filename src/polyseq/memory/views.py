"""All that the ops of one ubatch see of a memory; None where a memory has no such part."""

from __future__ import annotations

from dataclasses import dataclass

from polyseq.memory.rs_view import RsView
from polyseq.memory.seq_view import SeqView
from polyseq.memory.view import KvView


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """Made from an ubatch whose slot has been applied."""

    kv: KvView | None = None  # cells of every token
    kv_swa: KvView | None = None  # cells of a sliding window
    rs: RsView | None = None  # running states
    seqs: SeqView | None = None  # nothing is kept: the ubatch's own sequences
