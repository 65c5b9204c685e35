"""Many requests come and go on few sequence ids: every row as alone, and no memory that stays behind.

    python soak.py KIND N_CYCLES

One cycle: a sequence is cancelled, whatever it was doing, and a new text is submitted under its id; all of them then
advance by one call, of which some are aborted half-way and made again. Prints JSON: rows compared, and the most
memory that the process had after a quarter of the cycles and at the end, in KiB.
"""

from __future__ import annotations

import json
import resource
import sys

import numpy as np

from polyseq import Batch, Context
from polyseq import errors as e
from polyseq.memory import window_pair
from test_atomic import context, logits

N_SEQS, N_TEXTS, LENGTH, N_VOCAB = 4, 16, 20, 60
TOLERANCE = 1e-4


class Soak:
    """One context, and how far each of its sequences has come in which text."""

    def __init__(self, kind: str) -> None:
        self.rng = np.random.default_rng(7)
        self.texts = self.rng.integers(0, N_VOCAB, (N_TEXTS, LENGTH))
        self.alone = [logits(context(kind), text.tolist()) for text in self.texts]
        self.ctx: Context = context(kind, n_seq_max=N_SEQS, n_ctx=N_SEQS * (LENGTH + 4), n_ubatch=8)
        self.text = [0] * N_SEQS
        self.n_past = [LENGTH] * N_SEQS
        self.n_rows = 0

    def cycle(self) -> None:
        s = int(self.rng.integers(N_SEQS))
        self.ctx.memory.rm(s)
        self.text[s], self.n_past[s] = int(self.rng.integers(N_TEXTS)), 0
        n_new = [min(int(self.rng.integers(1, 8 if p == 0 else 3)), LENGTH - p) for p in self.n_past]
        batch = self.ctx.batch()
        for q, n in enumerate(n_new):
            if n:
                start = self.n_past[q]
                batch.extend(self.texts[self.text[q], start : start + n], seq=q, output=True)
        if self.rng.random() < 0.2:
            self.abort(batch)
        found = self.ctx.decode(batch).all_logits()
        at = 0
        for q, n in enumerate(n_new):
            wanted = self.alone[self.text[q]][self.n_past[q] : self.n_past[q] + n]
            assert n == 0 or np.abs(found[at : at + n] - wanted).max() < TOLERANCE, f"sequence {q}"
            at += n
            self.n_past[q] += n
        self.n_rows += at

    def abort(self, batch: Batch) -> None:
        """The call is made, and aborted while its first ubatch is computed."""
        compute, before = self.ctx._compute.ubatch, self.ctx.memory.columns()

        def computing(*args: object) -> None:
            self.ctx.abort()
            compute(*args)  # type: ignore[arg-type]

        self.ctx._compute.ubatch = computing  # type: ignore[method-assign, assignment]
        try:
            self.ctx.decode(batch)
            raise AssertionError("it went through")
        except e.Aborted:
            assert self.ctx.memory.columns() == before
        finally:
            self.ctx._compute.ubatch = compute  # type: ignore[method-assign]


def peak_kib() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1024 if sys.platform == "darwin" else peak


def main() -> None:
    kind, n_cycles = sys.argv[1], int(sys.argv[2])
    window_pair.WINDOW_PAD = 1
    soak = Soak(kind)
    for _ in range(n_cycles // 4):
        soak.cycle()
    early = peak_kib()
    for _ in range(n_cycles - n_cycles // 4):
        soak.cycle()
    soak.ctx.memory.check()
    print(json.dumps({"rows": soak.n_rows, "early_kib": early, "end_kib": peak_kib()}))


if __name__ == "__main__":
    main()
