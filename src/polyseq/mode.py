"""What a context gives for its rows: logits where asked for, or embeddings of every row or every sequence.

Enters: a model and the pooling asked for. Leaves: a `Mode`, which the steps of a call ask what to refuse, which rows
to hand out and what to compute. One context has one mode, so that the two kinds never meet in a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
from gguf.constants import PoolingType
from numpy.typing import NDArray

from polyseq.batch import CheckedBatch
from polyseq.context_sizes import ContextSizes, effective_sizes, encoder_sizes
from polyseq.errors import BeyondModel, CapabilityError, InvalidModelFile
from polyseq.graph import Pooling
from polyseq.memory import SeqView
from polyseq.model import Model
from polyseq.split import Ubatch
from polyseq.split.whole import refuse_long_sequences, refuse_shared_rows

AnyPooling = Literal["none", Pooling]


class Mode(Protocol):
    """Logits or embeddings."""

    @property
    def pooling(self) -> Pooling | None:
        """How a sequence becomes one row; None: it does not."""
        ...

    @property
    def logits(self) -> bool:
        """Rows with an output give logits; else every row counts as one, whatever the batch says."""
        ...

    @property
    def hidden(self) -> bool:
        """Every row is handed out."""
        ...

    def check(self, batch: CheckedBatch, sizes: ContextSizes) -> None:
        """Pure. Refuses what this mode cannot do with the batch, before anything is cut."""
        ...

    def out_rows(self, ubatch: Ubatch) -> NDArray[np.int32]:
        """Pure. [n_outputs] i32, rows of the ubatch that go on to what comes after the last layer."""
        ...

    def seqs(self, ubatch: Ubatch) -> SeqView | None:
        """Pure. The ubatch's sequences, where they are pooled."""
        ...


@dataclass(frozen=True, slots=True)
class Logits:
    """What decoders are for."""

    pooling: Pooling | None = None
    logits: bool = True
    hidden: bool = False

    def check(self, batch: CheckedBatch, sizes: ContextSizes) -> None:
        """Pure. Nothing is refused."""

    def out_rows(self, ubatch: Ubatch) -> NDArray[np.int32]:
        """Pure. The rows asked for."""
        return ubatch.out_rows

    def seqs(self, ubatch: Ubatch) -> SeqView | None:
        """Pure."""
        return None


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Rows after the last norm: of every sequence, or of every token (`pooling` None)."""

    pooling: Pooling | None
    encodes: bool  # the model's positions are a table: n_ctx_seq of them
    n_model: int  # tokens of a text that the model was trained for
    logits: bool = False

    @property
    def hidden(self) -> bool:
        """Every row is handed out where none stands for its sequence."""
        return self.pooling is None

    def check(self, batch: CheckedBatch, sizes: ContextSizes) -> None:
        """Pure. Raises `BeyondModel`, `SharedRow`, `SequenceTooLong`."""
        if self.encodes and batch.pos.max() >= sizes.n_ctx_seq:
            _refuse_position(batch, sizes.n_ctx_seq)
        if self.encodes or self.pooling is not None:
            refuse_shared_rows(batch)
            refuse_long_sequences(batch, sizes.n_ubatch, n_model=self.n_model)

    def out_rows(self, ubatch: Ubatch) -> NDArray[np.int32]:
        """Pure. The row that stands for each sequence, in the order of `seq_id_unq`."""
        dense = ubatch.seq_idx[ubatch.first_seq]
        if self.pooling == "last":
            return (len(dense) - 1 - np.unique(dense[::-1], return_index=True)[1]).astype(np.int32)
        return np.unique(dense, return_index=True)[1].astype(np.int32)

    def seqs(self, ubatch: Ubatch) -> SeqView | None:
        """Pure."""
        return SeqView(ubatch.n_seqs_unq, ubatch.seq_idx[ubatch.first_seq])


def mode_of(model: Model, pooling: AnyPooling | None) -> Mode:
    """Pure. The mode of a context. None: logits, or for a model that gives none, what its file says.

    Raises `CapabilityError` for what the model cannot give, `InvalidModelFile` for a file that says nonsense.
    """
    known = get_args(Pooling)
    if pooling is not None and pooling not in ("none", *known):
        raise CapabilityError(f"pooling {pooling!r} is none of none, {', '.join(known)}")
    encodes = is_encoder(model)
    if pooling is None and not encodes:
        return Logits()
    chosen = (file_pooling(model) or "none") if pooling is None else pooling
    able = model.architecture.poolings
    if chosen != "none" and chosen not in able:
        missing = "it has no classification head" if chosen == "rank" else "its rows see only rows before them"
        raise CapabilityError(
            f"{model.name} ({model.architecture.name}) cannot pool by {chosen!r}: {missing}; "
            f"it can: none, {', '.join(sorted(able))}"
        )
    return Embeddings(None if chosen == "none" else chosen, encodes, model.architecture.hparams.n_ctx_train)


def is_encoder(model: Model) -> bool:
    """Pure. Whether the model keeps nothing between calls: every row sees its whole sequence, and no text goes on."""
    return all(layer is None for layer in model.architecture.cache_layers)


def sizes_of(
    model: Model, *, n_ctx: int, n_seq_max: int, n_batch: int | None, n_ubatch: int | None, unified: bool
) -> ContextSizes:
    """The sizes in effect of a context on that model; see `effective_sizes` and `encoder_sizes`."""
    sizes = encoder_sizes if is_encoder(model) else effective_sizes
    return sizes(
        n_ctx=n_ctx,
        n_ctx_train=model.architecture.hparams.n_ctx_train,
        n_seq_max=n_seq_max,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        unified=unified,
    )


def file_pooling(model: Model) -> AnyPooling | None:
    """Pure. The pooling a file asks for (`<architecture>.pooling_type`), None where it does not say."""
    key = f"{model.architecture.name}.pooling_type"
    value = model.metadata.get(key)
    if value is None:
        return None
    names: dict[int, AnyPooling] = {
        PoolingType.NONE: "none",
        PoolingType.MEAN: "mean",
        PoolingType.CLS: "cls",
        PoolingType.LAST: "last",
        PoolingType.RANK: "rank",
    }
    if not isinstance(value, int) or value not in names:
        raise InvalidModelFile(f"{key} is {value!r}, known are {', '.join(map(str, names))}")
    return names[value]


def _refuse_position(batch: CheckedBatch, limit: int) -> None:
    row = int(np.argmax((batch.pos >= limit).any(axis=0)))
    seq_id, pos = int(batch.first_seq[row]), int(batch.pos[:, row].max())
    raise BeyondModel(
        f"row {row}: sequence {seq_id} reaches position {pos}, the model has positions 0 to {limit - 1}; "
        f"shorten the text to {limit} tokens",
        row=row,
        seq_id=seq_id,
        value=pos,
        limit=limit,
    )
