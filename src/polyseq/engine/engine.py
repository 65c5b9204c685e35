"""The loop: many requests, one context, one batch per step.

Enters: requests (`submit`). Leaves: events (`step`, `run`). Each step admits waiting requests to free
sequences, plans one batch, decodes it, draws. What a memory cannot hold waits or ends with a reason; nothing
is lost.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from time import perf_counter

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyseq.batch import Batch
from polyseq.context import Context
from polyseq.engine.events import Done, Event, Reason, Token
from polyseq.engine.plan import Chunk, plan_step
from polyseq.engine.pool import SequencePool
from polyseq.engine.prefix import NO_PREFIX, starts_with
from polyseq.engine.request import Request, token_column, why_not
from polyseq.engine.stats import EngineStats
from polyseq.errors import CapabilityError, NoSlot, SamplingError, UnknownRequest
from polyseq.model import Model
from polyseq.outputs import Outputs
from polyseq.sampling import Sampler, SamplingParams


class Engine:
    """Runs requests over the sequences of `ctx` that are empty when it is made.

    prefix: tokens [n] that requests may start with; they are computed once. On a unified cache requests that
    start together carry it in rows of all their sequences; everybody else takes it over from a sequence that
    has it. watch: called with each batch before it is decoded.
    """

    def __init__(
        self,
        ctx: Context,
        model: Model,
        *,
        prefix: NDArray[np.int32] = NO_PREFIX,
        watch: Callable[[Batch], None] | None = None,
    ) -> None:
        if not ctx.mode.logits:
            raise CapabilityError(f"a context of {ctx.model.name} gives embeddings here, not text: see polyseq.embed")
        self.stats = EngineStats()
        self._ctx = ctx
        self._tokenizer = model.tokenizer
        self._n_vocab = model.architecture.hparams.n_vocab
        self._prefix = prefix
        self._watch = watch
        self._batch = ctx.batch()
        self._n_submitted = 0
        self._waiting: OrderedDict[int, Request] = OrderedDict()  # by i_prompt, the next to start first
        self._active: list[Request] = []  # in the order of admission
        self._pool = SequencePool(ctx, len(prefix))
        self._news: list[Event] = []
        self._crowded = False  # memory was full: nobody new until somebody ends
        self._before = ctx.stats
        self._turn = threading.Lock()  # held by a step, and by whoever cancels between steps
        self._to_cancel: deque[int] = deque()  # asked for while a step ran

    # ---- requests in ---------------------------------------------------------------------------------

    def submit(self, tokens: ArrayLike, *, params: SamplingParams, max_tokens: int | None = None) -> int:
        """Changes the queue; returns the request's `i_prompt`.

        tokens [n_prompt] ints; a prompt that can never run gets its `Done` with the next step.
        Raises SamplingError for a `max_tokens` that is no integer >= 1, BadColumn for tokens that are none.
        """
        if max_tokens is not None and (not isinstance(max_tokens, int | np.integer) or max_tokens < 1):
            raise SamplingError(f"max_tokens {max_tokens} is not an integer >= 1")
        tokens = token_column(tokens)
        i_prompt = self._n_submitted
        self._n_submitted += 1
        refusal = why_not(tokens, limit=self._ctx.n_ctx_seq, n_vocab=self._n_vocab)
        if refusal:
            self._news.append(Done(i_prompt, "error", len(tokens), 0, message=refusal))
            return i_prompt
        sampler = Sampler(params)
        sampler.accept_prompt(tokens)
        shares = starts_with(tokens, self._prefix)
        self._waiting[i_prompt] = Request(i_prompt, tokens, max_tokens, sampler, self._tokenizer.stream(), shares)
        self.stats.n_prompt_tokens += len(tokens)
        return i_prompt

    def cancel(self, i_prompt: int) -> None:
        """Changes queue and memory: a request that is not over ends, waiting, reading or answering. For any thread.

        Its cells are free on return; while a step runs, once that step ends or, at the latest, before the next. Its
        `Done` says "cancelled" and how many tokens it had given. Others notice nothing. One that is over stays as it
        is. Raises `UnknownRequest` for a number that `submit` has not returned.
        """
        if not isinstance(i_prompt, int | np.integer) or not 0 <= i_prompt < self._n_submitted:
            raise UnknownRequest(f"there is no request {i_prompt!r}: {self._n_submitted} were submitted, from 0 on")
        self._to_cancel.append(int(i_prompt))
        while self._to_cancel and self._turn.acquire(blocking=False):
            try:
                self._cancel_asked()
            finally:
                self._turn.release()

    def _cancel_asked(self) -> None:
        while self._to_cancel:
            i_prompt = self._to_cancel.popleft()
            request = self._waiting.get(i_prompt) or next((r for r in self._active if r.i_prompt == i_prompt), None)
            if request is not None:
                self._finish(request, "cancelled")
        self._forget_prefix_if_unwanted()

    # ---- the loop ------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether every request has had its `Done`."""
        return not (self._waiting or self._active or self._news)

    def run(self) -> Iterator[Event]:
        """Changes the context until every request is done, yielding events; leaves its sequences free."""
        try:
            while not self.finished:
                yield from self.step()
        finally:
            self.close()

    def step(self) -> list[Event]:
        """Changes the context: one batch, and one token for every request whose prompt is complete."""
        with self._turn:
            self._cancel_asked()
            self._admit()
            chunks, outputs = self._decode()
            if outputs is not None:
                self._advance(chunks)
                self._draw(chunks, outputs)
            self._cancel_asked()
            events, self._news = self._news, []
            return events

    def close(self) -> None:
        """Changes the context: this engine's sequences are empty again; unfinished requests are dropped."""
        with self._turn:
            for request in self._active:
                self._pool.give_back(request.seq, keep_prefix=False)
            self._active.clear()
            self._waiting.clear()
            self._news.clear()
            self._pool.forget_prefix()

    def _decode(self) -> tuple[list[Chunk], Outputs | None]:
        """Plans until the memory takes it; each refusal leaves fewer rows or fewer requests, so this ends."""
        while self._active:
            chunks = plan_step(
                self._active,
                self._prefix,
                n_batch=self._ctx.n_batch,
                share_rows=self._ctx.unified,
                with_prompts=not self._crowded,
            )
            self._fill(chunks)
            try:
                if self._watch:
                    self._watch(self._batch)
                began = perf_counter()
                outputs = self._ctx.decode(self._batch)
            except NoSlot as full:
                self.stats.n_refused += 1
                self._make_room(chunks, full)
                continue
            self._count(chunks, perf_counter() - began)
            return chunks, outputs
        return [], None

    def _fill(self, chunks: list[Chunk]) -> None:
        self._batch.clear()
        decoding = [c for c in chunks if not c.prompt]  # they stand first
        if decoding:
            seqs = [c.requests[0].seq for c in decoding]
            self._batch.extend(np.concatenate([c.tokens for c in decoding]), seq=seqs, output=True)
        for chunk in chunks[len(decoding) :]:
            output = np.zeros(len(chunk.tokens), np.bool_)
            output[-1] = chunk.output
            self._batch.extend(chunk.tokens, seq={r.seq for r in chunk.requests}, output=output)

    def _advance(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            for request in chunk.requests:
                request.n_past += len(chunk.tokens)

    def _draw(self, chunks: list[Chunk], outputs: Outputs) -> None:
        began = perf_counter()
        row = -1
        for chunk in chunks:
            row += len(chunk.tokens)
            if chunk.output:
                self._draw_one(chunk.requests[0], outputs.logits(row))
        self.stats.gen_s += perf_counter() - began

    def _draw_one(self, request: Request, logits: NDArray[np.float32]) -> None:
        try:
            token = request.sampler.sample(logits)
        except SamplingError as error:
            return self._finish(request, "error", str(error))
        self.stats.n_sampled += 1
        if token in self._tokenizer.stop_ids:
            return self._finish(request, "stop")
        request.sampler.accept(token)
        request.last = token
        request.n_gen += 1
        text = request.stream.push(token)
        self._news.append(Token(request.i_prompt, token, text))
        if request.max_tokens is not None and request.n_gen >= request.max_tokens:
            return self._finish(request, "length")
        if request.n_past >= self._ctx.n_ctx_seq:
            limit = self._ctx.n_ctx_seq
            self._finish(request, "context", f"the sequence fills its {limit} cells (n_ctx_seq)")
        return None

    def _count(self, chunks: list[Chunk], seconds: float) -> None:
        stats = self.stats
        n_prompt = sum(len(c.tokens) for c in chunks if c.prompt)
        n_gen = sum(len(c.tokens) for c in chunks if not c.prompt)
        stats.n_prompt_rows += n_prompt
        stats.n_gen_rows += n_gen
        stats.prompt_s += seconds * n_prompt / (n_prompt + n_gen)
        stats.gen_s += seconds * n_gen / (n_prompt + n_gen)
        before, now = self._before, self._ctx.stats
        stats.n_decode = now.n_decode - before.n_decode
        stats.n_ubatches = now.n_ubatches - before.n_ubatches
        stats.plan_hits = now.plan_hits - before.plan_hits
        stats.plan_misses = now.plan_misses - before.plan_misses

    # ---- requests between queue and sequences ----------------------------------------------------------

    def _admit(self) -> None:
        """Changes the queue: waiting requests get free sequences, first come first served."""
        while self._waiting and self._pool and (not self._crowded or not self._active):
            i_prompt, request = next(iter(self._waiting.items()))
            if not self._may_start(request):
                break
            del self._waiting[i_prompt]
            request.seq, request.n_past = self._pool.take(shares=request.shares, holder=self._holder())
            self._active.append(request)
        self._forget_prefix_if_unwanted()

    def _forget_prefix_if_unwanted(self) -> None:
        if self._pool.keeper is not None and not any(r.shares for r in self._waiting.values()):
            self._pool.forget_prefix()

    def _may_start(self, request: Request) -> bool:
        """A sharing request waits while the prefix is computed, unless it can join from the start."""
        if not request.shares or self._holder() is not None or self._pool.keeper is not None:
            return True
        under_way = [r for r in self._active if r.shares]
        return all(self._ctx.unified and r.n_past == 0 for r in under_way)

    def _holder(self) -> int | None:
        """A sequence in use that has the whole prefix in memory."""
        return next((r.seq for r in self._active if r.shares and r.n_past >= len(self._prefix)), None)

    def _finish(self, request: Request, reason: Reason, message: str = "") -> None:
        """Changes memory and queue: the request ends, and its sequence, if it had one, is free."""
        if request.seq < 0:
            del self._waiting[request.i_prompt]
        else:
            computed = request.shares and request.n_past >= len(self._prefix)
            self._pool.give_back(request.seq, keep_prefix=computed and any(r.shares for r in self._waiting.values()))
            self._active.remove(request)
            self._crowded = False
        text = request.stream.flush()
        self._news.append(Done(request.i_prompt, reason, request.n_prompt, request.n_gen, text, message))

    # ---- a full memory ---------------------------------------------------------------------------------

    def _make_room(self, chunks: list[Chunk], full: NoSlot) -> None:
        """Changes memory or the next plan after a refusal, the mildest way that is left."""
        if self._pool.forget_prefix():  # 1. what free sequences kept for the next requests
            return None
        self._crowded = True
        if any(c.prompt for c in chunks) and not all(c.prompt for c in chunks):
            return None  # 2. prompts wait, decoding goes on alone
        reading = [r for r in self._active if not r.decoding]
        if reading and len(self._active) > 1:  # 3. the newest prompt starts over later; no text is lost
            return self._put_back(reading[-1])
        victim = self._active[-1]  # 4. the newest request ends
        return self._finish(victim, "context" if victim.decoding else "error", str(full))

    def _put_back(self, request: Request) -> None:
        self._pool.give_back(request.seq, keep_prefix=False)
        self._active.remove(request)
        request.seq, request.n_past = -1, 0
        self._waiting[request.i_prompt] = request
        self._waiting.move_to_end(request.i_prompt, last=False)
