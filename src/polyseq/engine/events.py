"""What the engine tells its caller, one value per happening.

Leaves the engine in the order in which things happen; `i_prompt` is the index of the prompt as submitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reason = Literal["stop", "length", "context", "error", "cancelled"]


@dataclass(frozen=True, slots=True)
class Token:
    """One more token of an answer. `text` is what it completes: empty while UTF-8 is unfinished."""

    i_prompt: int
    token: int
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """An answer has ended.

    "stop": a stop token came; "length": `max_tokens` are out; "context": no room for more, `message` says
    what was full; "error": the prompt could not be run, or its logits not be drawn from, `message` says why;
    "cancelled": the caller wanted no more, see `Engine.cancel`.
    """

    i_prompt: int
    reason: Reason
    n_prompt: int
    n_gen: int  # tokens of the answer, the stop token not among them
    text: str = ""  # the rest of the answer: bytes that never became whole characters
    message: str = ""


Event = Token | Done
