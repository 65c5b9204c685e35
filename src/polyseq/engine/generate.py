"""The short way from prompts to events.

Enters: a context, a model, prompts. Leaves: an engine that holds them all, or directly its events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from numpy.typing import ArrayLike

from polyseq.batch import Batch
from polyseq.context import Context
from polyseq.engine.engine import Engine
from polyseq.engine.events import Event
from polyseq.engine.prefix import NO_PREFIX, common_prefix
from polyseq.engine.request import token_column
from polyseq.errors import SamplingError
from polyseq.model import Model
from polyseq.sampling import SamplingParams


def start(
    ctx: Context,
    model: Model,
    prompts: Sequence[ArrayLike],
    *,
    params: SamplingParams | Sequence[SamplingParams],
    max_tokens: int | None = None,
    share_prefix: bool = True,
    watch: Callable[[Batch], None] | None = None,
) -> Engine:
    """Changes nothing yet. An engine with every prompt ([n_prompt] i32) submitted; see `generate`."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    if len(each) != len(prompts):
        raise SamplingError(f"params holds {len(each)} values for {len(prompts)} prompts; give one, or one each")
    columns = [token_column(prompt) for prompt in prompts]
    runnable = [p for p in columns if 0 < len(p) <= ctx.n_ctx_seq]
    prefix = common_prefix(runnable) if share_prefix else NO_PREFIX
    engine = Engine(ctx, model, prefix=prefix, watch=watch)
    for tokens, sampling in zip(columns, each, strict=True):
        engine.submit(tokens, params=sampling, max_tokens=max_tokens)
    return engine


def generate(
    ctx: Context,
    model: Model,
    prompts: Sequence[ArrayLike],
    *,
    params: SamplingParams | Sequence[SamplingParams],
    max_tokens: int | None = None,
    share_prefix: bool = True,
) -> Iterator[Event]:
    """Changes the context's memory while it runs; its sequences are free again at the end, however it ends.

    prompts: token columns [n_prompt] of ints, all run at once as far as `n_seq_max` allows, the rest as places free
    up. params: for all, or one per prompt; every prompt draws with its own generator, so with a seed an answer does
    not depend on its company (as long as memory holds them all: a full one ends the newest). max_tokens None = until
    a stop token or the context's end. Yields `Token` and, once per prompt, `Done`. Errors of one prompt end that
    prompt alone.
    """
    engine = start(ctx, model, prompts, params=params, max_tokens=max_tokens, share_prefix=share_prefix)
    yield from engine.run()
