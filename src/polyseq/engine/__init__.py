"""Many prompts on one context: requests, shared prefixes, one batch per step, events as text comes.

Enters: prompts as token columns with their sampling parameters. Leaves: `Token` and `Done` events, each
naming its prompt. Stands above the context, whose `decode` does one step's work.
"""

from polyseq.engine.engine import Engine
from polyseq.engine.events import Done, Event, Reason, Token
from polyseq.engine.generate import generate, start
from polyseq.engine.prefix import MIN_PREFIX, common_prefix
from polyseq.engine.stats import EngineStats

__all__ = [
    "MIN_PREFIX",
    "Done",
    "Engine",
    "EngineStats",
    "Event",
    "Reason",
    "Token",
    "common_prefix",
    "generate",
    "start",
]
