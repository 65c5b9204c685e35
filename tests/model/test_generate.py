"""The engine on SmolLM2-135M: answers that make sense, the same alone and in company, on either cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from polyseq import Context, Model
from polyseq.engine import Done, Token, generate, start
from polyseq.sampling import SamplingParams

pytestmark = pytest.mark.model

QUESTIONS = {
    "What is the capital of France?": "Paris",
    "What is the capital of Italy?": "Rome",
    "How many days are in a week?": "7|seven",
    "What colour is the sky on a clear day?": "blue",
}
TEMPERATURES = (0.0, 0.7)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load("smollm2-135m")


@pytest.fixture(scope="module")
def prompts(model: Model) -> list[NDArray[np.int32]]:
    assert model.chat_template is not None and model.tokenizer is not None
    system = {"role": "system", "content": "You are a helpful assistant. Answer in one short sentence."}
    texts = [model.chat_template.render([system, {"role": "user", "content": q}]) for q in QUESTIONS]
    return [model.tokenizer.encode(text, add_special=False) for text in texts]


def answers(
    model: Model,
    prompts: Sequence[NDArray[np.int32]],
    params: SamplingParams,
    *,
    unified: bool,
    n_seq_max: int,
    n_ubatch: int = 512,
    max_tokens: int = 24,
) -> list[tuple[str, list[int], str]]:
    """(text, tokens, reason) of every prompt."""
    n_ctx = n_seq_max * (max(map(len, prompts)) + max_tokens)
    n_batch = min(n_ctx, 512)
    # On cpu a shared prefix puts the rest into other blocks: sums in another order, and now and then another word.
    ctx = Context(
        model,
        n_ctx=n_ctx,
        n_seq_max=n_seq_max,
        n_batch=n_batch,
        n_ubatch=min(n_ubatch, n_batch),
        unified=unified,
        backend="reference",
    )
    text, tokens, reason = [""] * len(prompts), [[] for _ in prompts], [""] * len(prompts)
    for event in generate(ctx, model, prompts, params=params, max_tokens=max_tokens):
        text[event.i_prompt] += event.text
        if isinstance(event, Token):
            tokens[event.i_prompt].append(event.token)
        else:
            reason[event.i_prompt] = event.reason
    return list(zip(text, tokens, reason, strict=True))


def seeded(temperature: float) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=11)


@pytest.fixture(scope="module")
def alone(model: Model, prompts: list[NDArray[np.int32]]) -> dict[float, list[tuple[str, list[int], str]]]:
    """By temperature, the answer of every prompt in a context of its own."""
    return {
        temperature: [answers(model, [p], seeded(temperature), unified=False, n_seq_max=1)[0] for p in prompts]
        for temperature in TEMPERATURES
    }


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_company_cut_and_cache_do_not_change_an_answer(
    model: Model,
    prompts: list[NDArray[np.int32]],
    alone: dict[float, list[tuple[str, list[int], str]]],
    unified: bool,
    temperature: float,
) -> None:
    together = answers(model, prompts, seeded(temperature), unified=unified, n_seq_max=3, n_ubatch=32)
    assert together == alone[temperature]


def test_greedy_answers_are_right(model: Model, prompts: list[NDArray[np.int32]]) -> None:
    found = answers(model, prompts, SamplingParams(temperature=0.0), unified=True, n_seq_max=4)
    right = [any(w in text.lower() for w in wanted.lower().split("|")) for (text, *_), wanted in zip(
        found, QUESTIONS.values(), strict=True)]  # fmt: skip
    assert right[0] and sum(right) >= 3, [text for text, *_ in found]
    assert found[0][2] == "stop"


def test_the_system_prompt_is_computed_once(model: Model, prompts: list[NDArray[np.int32]]) -> None:
    for unified in (True, False):
        ctx = Context(model, n_ctx=512, n_seq_max=4, n_batch=512, n_ubatch=512, unified=unified)
        engine = start(ctx, model, prompts, params=SamplingParams(temperature=0.0), max_tokens=1)
        done = [event for event in engine.run() if isinstance(event, Done)]
        assert len(done) == len(prompts)
        n_shared = engine.stats.n_prompt_tokens - engine.stats.n_prompt_rows
        assert n_shared >= 3 * 15
        assert n_shared % 3 == 0  # three of four sequences were spared the same tokens
