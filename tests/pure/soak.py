"""Many requests come and go on few sequences of one engine: every row as alone, and no memory that stays behind.

    python soak.py KIND N_CYCLES

One cycle: a request is cancelled, whatever it was doing - it waits, is read, or answers - before the step, or by
another thread while a step computes; a new one is submitted; all of them then advance by one step, some of which are
aborted half-way and made again. Half of the requests share a prefix. Prints JSON: rows compared, requests by how they
ended, and the most memory that the process had after a quarter of the cycles and at the end, in KiB.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyseq import Context, Model
from polyseq import errors as e
from polyseq.engine import Done, Engine
from polyseq.memory import window_pair
from polyseq.sampling import SamplingParams
from test_atomic import KINDS, context
from tiny_gguf import write_tiny_gguf

N_SEQS, N_WAITING, N_TEXTS, N_PREFIX, N_PROMPT, N_ANSWER, N_VOCAB = 4, 2, 16, 9, 14, 8, 60
TOLERANCE = 1e-4


class AsAlone:
    """The sampler of one request: compares each row with the one its text had alone, and draws what that drew."""

    def __init__(self, alone: NDArray[np.float32], tokens: NDArray[np.int32]) -> None:
        self.alone, self.tokens, self.n = alone, tokens, 0

    def sample(self, logits: NDArray[np.float32]) -> int:
        difference = np.abs(logits - self.alone[self.n]).max()
        assert difference < TOLERANCE, f"token {self.n} of an answer is off by {difference}"
        self.n += 1
        return int(self.tokens[self.n - 1])

    def accept(self, token: int) -> None:
        """It draws from nothing."""


class Soak:
    """One engine, and what each of its texts says alone."""

    def __init__(self, kind: str, tokenizer_of: Model) -> None:
        tiny, _ = KINDS[kind]
        model = Model(tiny.architecture, tiny.weights, tokenizer_of.metadata)
        self.rng = np.random.default_rng(7)
        prefix = self.rng.integers(0, N_VOCAB, N_PREFIX)
        lengths = self.rng.integers(1, N_PROMPT - N_PREFIX + 1, N_TEXTS)
        self.prompts = [
            np.concatenate((prefix if i % 2 else prefix[:0], self.rng.integers(0, N_VOCAB, n))).astype(np.int32)
            for i, n in enumerate(lengths)
        ]
        self.alone = [answer(kind, prompt) for prompt in self.prompts]
        self.ctx: Context = context(kind, n_seq_max=N_SEQS, n_ctx=N_SEQS * (N_PROMPT + N_ANSWER + 2), n_ubatch=8)
        self.engine = Engine(self.ctx, model, prefix=prefix.astype(np.int32))
        self.under_way: dict[int, AsAlone] = {}
        self.cancelled: set[int] = set()
        self.ended: Counter[str] = Counter()
        self.n_rows = 0

    def cycle(self) -> None:
        while len(self.under_way) < N_SEQS + N_WAITING:
            self.submit()
        victim = int(self.rng.choice(list(self.under_way)))
        self.cancelled.add(victim)
        how = self.rng.random()
        if how < 0.6:
            self.cancel(victim)
            self.step()
        else:
            with while_computing(self.ctx, lambda: from_another_thread(lambda: self.engine.cancel(victim))):
                self.step()
        if self.rng.random() < 0.2:
            self.abort()
        for _ in range(int(self.rng.integers(0, 4))):
            self.step()

    def submit(self) -> None:
        k = int(self.rng.integers(N_TEXTS))
        i = self.engine.submit(
            self.prompts[k], params=SamplingParams(), max_tokens=int(self.rng.integers(1, N_ANSWER + 1))
        )
        self.under_way[i] = AsAlone(*self.alone[k])
        next(reversed(self.engine._waiting.values())).sampler = self.under_way[i]  # type: ignore[assignment]

    def cancel(self, i: int) -> None:
        """Between steps: what it held is free on return."""
        seq = next((r.seq for r in self.engine._active if r.i_prompt == i), None)
        self.engine.cancel(i)
        if seq is not None:
            kept = self.engine._pool._kept[seq]
            assert self.ctx.memory.pos_max(seq) == kept - 1, "only the prefix may stay, for those who wait for it"

    def step(self) -> None:
        for event in self.engine.step():
            request = self.under_way[event.i_prompt]
            if isinstance(event, Done):
                assert event.n_gen == request.n, "what it had given is reported"
                assert event.reason in ("length", "cancelled") and not event.message
                assert event.reason == "length" or event.i_prompt in self.cancelled
                self.ended[event.reason] += 1
                self.n_rows += request.n
                del self.under_way[event.i_prompt]

    def abort(self) -> None:
        """A step is aborted while its first ubatch is computed: memory is as before."""
        with while_computing(self.ctx, self.ctx.abort) as computed:
            self.engine._turn.acquire()
            self.engine._admit()  # what a step does before it decodes
            self.engine._turn.release()
            before = self.ctx.memory.columns()
            try:
                self.engine.step()
                assert not computed, "it went through"
            except e.Aborted:
                assert self.ctx.memory.columns() == before


def answer(kind: str, prompt: NDArray[np.int32]) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """([N_ANSWER, n_vocab] f32, [N_ANSWER] i32) what a prompt says greedily alone, a token per call."""
    ctx = context(kind, n_seq_max=1)
    batch = ctx.batch()
    rows, tokens, fed = [], [], prompt
    for _ in range(N_ANSWER):
        batch.clear()
        batch.extend(fed, seq=0, output=np.arange(len(fed)) == len(fed) - 1)
        rows.append(ctx.decode(batch).logits(-1))
        tokens.append(int(rows[-1][:N_VOCAB].argmax()))
        fed = np.array(tokens[-1:], np.int32)
    return np.stack(rows), np.array(tokens, np.int32)


def from_another_thread(act: Callable[[], None]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


@contextmanager
def while_computing(ctx: Context, act: Callable[[], None]) -> Iterator[list[bool]]:
    """`act` is done once, as the first ubatch is about to be computed; where the list is empty there was none."""
    compute, done = ctx._compute.ubatch, list[bool]()

    def computing(*args: Any) -> None:
        if not done:
            done.append(True)
            act()
        compute(*args)

    ctx._compute.ubatch = computing  # type: ignore[method-assign]
    try:
        yield done
    finally:
        ctx._compute.ubatch = compute  # type: ignore[method-assign]


def peak_kib() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1024 if sys.platform == "darwin" else peak


def main() -> None:
    kind, n_cycles = sys.argv[1], int(sys.argv[2])
    window_pair.WINDOW_PAD = 1
    with tempfile.TemporaryDirectory() as folder:
        tokenizer_of = Model.load(write_tiny_gguf(Path(folder) / "endless.gguf", with_eos=False))
        soak = Soak(kind, tokenizer_of)
    for _ in range(n_cycles // 4):
        soak.cycle()
    early = peak_kib()
    for _ in range(n_cycles - n_cycles // 4):
        soak.cycle()
    while not soak.engine.finished:
        soak.step()
    soak.engine.close()
    assert not soak.under_way and not any(soak.ctx.memory.pos_max(s) >= 0 for s in range(N_SEQS))
    soak.ctx.memory.check()
    print(json.dumps({"rows": soak.n_rows, **soak.ended, "early_kib": early, "end_kib": peak_kib()}))


if __name__ == "__main__":
    main()
