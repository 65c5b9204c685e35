"""Options that several commands share, each in one place: what they are called, and what is said of them."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import typer

from polyseq.batch.seqset import MAX_SEQ

LIMITS, COMPUTING = "Limits", "Who computes"


class Pooled(Enum):
    """How a text becomes one vector."""

    MEAN = "mean"
    CLS = "cls"
    LAST = "last"

    value: Literal["mean", "cls", "last"]


class TooLongOption(Enum):
    """What becomes of a text above the model's maximum."""

    TRUNCATE = "truncate"
    REFUSE = "refuse"

    value: Literal["truncate", "refuse"]


# ---- every command that reads a model

ModelName = Annotated[str, typer.Argument(help="A GGUF file, a known name (see `polyseq pull`) or a hub id.")]
NoFetch = Annotated[bool, typer.Option("--no-fetch", help="Use only what is on this machine.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", help="What is left out here, from `polyseq tune --out`.", rich_help_panel=COMPUTING),
]

# ---- every command that runs one

Backend = Annotated[
    str | None, typer.Option(help="Who computes; left out, the best there is.", rich_help_panel=COMPUTING)
]
NThreads = Annotated[
    int | None,
    typer.Option(min=1, help="Threads that compute; left out, one per core.", rich_help_panel=COMPUTING),
]
KvType = Annotated[
    str | None,
    typer.Option(help="How the cache keeps numbers: bf16, or int8 for half the memory.", rich_help_panel=COMPUTING),
]

# ---- what is done to texts

TextFile = Annotated[Path, typer.Argument(help="One text per line, or JSON lines (.jsonl); - reads stdin.")]
TextsNBatch = Annotated[int | None, typer.Option(min=1, help="Most tokens of one call.", rich_help_panel=LIMITS)]
TextsNUbatch = Annotated[
    int | None,
    typer.Option(min=1, help="Most tokens computed at once; a longer text raises it.", rich_help_panel=LIMITS),
]
TextsNSeqMax = Annotated[int, typer.Option(min=1, max=MAX_SEQ, help="Most texts of one call.", rich_help_panel=LIMITS)]
