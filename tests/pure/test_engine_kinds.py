"""The engine on every kind of memory: a shared prefix is reused only where it can be gone on from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from polyseq import Context, Model
from polyseq.engine import start
from polyseq.memory import window_pair
from polyseq.sampling import SamplingParams
from test_atomic import KINDS
from test_engine import assert_empty, sorted_out
from tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """A tokenizer without an EOS; its vocabulary is larger than the models'."""
    folder: Path = tmp_path_factory.mktemp("tiny")
    return dict(Model.load(write_tiny_gguf(folder / "endless.gguf", with_eos=False)).metadata)


def greedy(model: Model, prompt: NDArray[np.int32], n: int) -> list[int]:
    """What the prompt says by itself: one sequence, one token per call, no engine."""
    ctx = Context(model, n_ctx=256, n_batch=256, n_ubatch=256, backend="reference")
    said: list[int] = []
    fed = prompt
    while len(said) < n:
        batch = ctx.batch()
        batch.extend(fed, output=np.arange(len(fed)) == len(fed) - 1)
        said.append(int(ctx.decode(batch).logits(-1).argmax()))
        fed = np.array(said[-1:], np.int32)
    return said


@pytest.mark.parametrize("kind", KINDS)
def test_company_and_a_shared_prefix_change_no_answer(
    kind: str, metadata: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_pair, "WINDOW_PAD", 1)
    tiny, unified = KINDS[kind]
    model = Model(tiny.architecture, tiny.weights, metadata)
    rng = np.random.default_rng(5)
    prefix = rng.integers(0, 60, 11)
    prompts = [np.concatenate((prefix, rng.integers(0, 60, n))).astype(np.int32) for n in (3, 9, 1, 5, 2)]
    params = SamplingParams(temperature=0)
    ctx = Context(model, n_ctx=120, n_seq_max=2, n_batch=16, n_ubatch=8, unified=unified, backend="reference")
    engine = start(ctx, model, prompts, params=params, max_tokens=6)
    events = []
    while not engine.finished:
        events += engine.step()
    engine.close()
    said, _ = sorted_out(events)
    for i, prompt in enumerate(prompts):
        assert said[i] == greedy(model, prompt, 6)
    assert_empty(ctx)
    ctx.memory.check()
