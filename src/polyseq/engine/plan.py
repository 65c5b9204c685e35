"""What goes into the next batch: decoding rows first, prompts fill the rest.

Enters: the requests that have a sequence. Leaves: chunks in batch order. Pure; only after the context has
decoded them do the requests move on, so a refused batch leaves nothing to take back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.engine.request import Request


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of one request, or of the prefix that several share (stored once for all)."""

    requests: tuple[Request, ...]
    tokens: NDArray[np.int32]  # [n] at least one
    output: bool  # whether the last row's logits are wanted
    prompt: bool  # a part of a prompt, not a drawn token


def plan_step(
    active: Sequence[Request],  # in the order of their admission
    prefix: NDArray[np.int32],
    *,
    n_batch: int,
    share_rows: bool,  # rows may carry several sequences (unified cache)
    with_prompts: bool,  # False: only decoding rows, unless there are none
) -> list[Chunk]:
    """Pure. The chunks of one batch, at most `n_batch` rows; at least one row if there is any request."""
    decoding = [r for r in active if r.decoding]
    if len(decoding) > n_batch:  # whoever is furthest behind goes first, so nobody starves
        decoding = sorted(decoding, key=lambda r: r.n_gen)[:n_batch]
    decoding.sort(key=lambda r: r.seq)  # cuts over streams take ascending ids together
    chunks = [Chunk((r,), np.array([r.last], np.int32), output=True, prompt=False) for r in decoding]
    if chunks and not with_prompts:
        return chunks
    room = n_batch - len(chunks)
    return chunks + _prompt_chunks([r for r in active if not r.decoding], prefix, room, share_rows)


def _prompt_chunks(requests: list[Request], prefix: NDArray[np.int32], room: int, share_rows: bool) -> list[Chunk]:
    chunks: list[Chunk] = []
    # those that start together stand at the same place in the prefix; see Engine._may_start
    starters = tuple(r for r in requests if r.shares and r.n_past < len(prefix)) if share_rows else ()
    reached = 0
    if len(starters) > 1 and room:
        n_past = starters[0].n_past
        tokens = prefix[n_past : n_past + room]
        chunks.append(Chunk(starters, tokens, output=False, prompt=True))
        reached, room = n_past + len(tokens), room - len(tokens)
        if reached < len(prefix):
            return chunks
    for request in requests:
        start = max(request.n_past, reached) if request in starters else request.n_past
        tokens = request.tokens[start : start + room]
        if not len(tokens):
            break
        output = start + len(tokens) == request.n_prompt
        chunks.append(Chunk((request,), tokens, output=output, prompt=True))
        room -= len(tokens)
    return chunks
