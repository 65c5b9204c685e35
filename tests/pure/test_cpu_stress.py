"""Thousands of steps of random shapes beside a busy process on every core: no hang, and a quiet run's bits.

pytest tests/pure/test_cpu_stress.py --n-stress-steps 10000
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pytest

from polyseq.context import Context
from tiny import tiny_llama

MODEL = tiny_llama(n_layer=2, n_head=6, n_head_kv=2, n_embd=96, n_ff=160, n_vocab=80).model
N_SEQS, N_CELLS, MOST_ROWS = 8, 512, 70


def digests(n_steps: int, n_threads: int, *, unified: bool) -> Iterator[bytes]:
    """Of each step's logits. A step: some rows of some sequences; a sequence that grew too long begins anew."""
    rng = np.random.default_rng(7)
    ctx = Context(
        MODEL, n_ctx=N_CELLS, n_seq_max=N_SEQS, n_ubatch=32, unified=unified, backend="cpu", n_threads=n_threads
    )
    for _ in range(n_steps):
        batch = ctx.batch()
        seq_ids = rng.permutation(N_SEQS)[: rng.integers(1, N_SEQS + 1)]
        most = 1 if rng.random() < 0.6 else MOST_ROWS // len(seq_ids)
        for seq_id in map(int, seq_ids):
            n = int(rng.integers(1, most + 1))
            if ctx.memory.pos_max(seq_id) + 1 + n > N_CELLS // N_SEQS:
                ctx.memory.rm(seq_id)
                n = min(n, N_CELLS // N_SEQS)
            batch.extend(rng.integers(0, 80, n, np.int32), seq=seq_id, output=rng.random(n) < 0.3)
        yield hashlib.blake2b(ctx.decode(batch).all_logits().tobytes(), digest_size=8).digest()


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.usefixtures("busy_cores")
def test_random_steps_beside_busy_processes(request: pytest.FixtureRequest, unified: bool) -> None:
    n_steps = request.config.getoption("--n-stress-steps")
    # One thread waits for nobody: its results are what a quiet run gives.
    alone = digests(n_steps, 1, unified=unified)
    for i, (found, wanted) in enumerate(zip(digests(n_steps, 3, unified=unified), alone, strict=True)):
        assert found == wanted, f"step {i}"
