"""Replays of recorded logits: the last row of each prompt, against float32 weights and against quantised ones."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from case import Verdict
from polyseq import Context, Model
from polyseq.tokenizer import Tokenizer
from polyseq.weights import GgufFile
from polyseq.weights.sources import KNOWN, cached

N_CTX = 1024
F32_WEIGHTS = "f32_weights"
# Largest difference over the recorded top 20 to an implementation in float32; only a float32 backend is held to it.
MAX_F32_DIFF = {"llama": 1e-3, "gemma3": 1e-2}
SURE_MARGIN = 1.0
# The cpu backend rounds activations to 8 bits in the same groups as the recorded runs did.
MAX_MEAN_KL = {"reference": 0.02, "cpu": 0.01}


class LogitsReplay:
    """One file of cases on one model, which is loaded when the first case needs it."""

    def __init__(self, path: Path, *, model: str | None, backend: str) -> None:
        self.path = path
        self.backend = backend
        self._name = model or ""
        self._kl: dict[str, list[float]] = {}
        self._f32_diff: list[float] = []

    @cached_property
    def model(self) -> Model:
        return Model.load(self._name)

    @cached_property
    def context(self) -> Context:
        return Context(self.model, n_ctx=N_CTX, n_ubatch=N_CTX, n_batch=N_CTX, backend=self.backend)

    def _find_model(self, case: dict[str, Any]) -> str:
        """The known model that the file's name speaks of, else the one whose tokenizer gives the case's tokens."""
        words = [word for word in self.path.stem.replace("-", "_").split("_") if len(word) > 4]
        named = [name for name in KNOWN if any(name.startswith(word) for word in words)]
        if len(named) == 1:
            return named[0]
        for name in KNOWN:
            place = cached(name)
            if place is not None and place.is_file() and gives(place, case):
                return name
        raise ValueError(f"{self.path.name} does not say which model it is of; use --model")

    def replay(self, case: dict[str, Any]) -> Verdict:
        verdict = Verdict(case["name"])
        self._name = self._name or self._find_model(case)
        tokens = case["tokens"]
        verdict.same("tokens", self.model.tokenizer.encode(case["text"]).tolist(), tokens)
        logits = self._last_logits(tokens)
        variants = {"recorded": case, **case["variants"]}
        self._judge_f32(verdict, logits, variants.pop(F32_WEIGHTS))
        for name, recorded in variants.items():
            top = recorded["top20"]
            if recorded["greedy_margin"][0] > SURE_MARGIN:
                verdict.same(f"{name} top-1", int(logits.argmax()), top[0][0])
            self._kl.setdefault(name, []).append(kl_divergence(top, logits))
        return verdict

    def summary(self) -> list[Verdict]:
        """Prints what was measured; a verdict of its own for each mean that is too large."""
        verdicts = []
        if self._f32_diff:
            print(f"{self.path.name}: max abs difference to float32 weights {max(self._f32_diff):.2e}")
        for name, values in self._kl.items():
            mean = float(np.mean(values))
            print(f"{self.path.name}: mean KL({name} || ours) {mean:.5f} over {len(values)} prompts")
            limit = MAX_MEAN_KL[self.context.backend]
            if mean >= limit:
                verdicts.append(Verdict(name, [f"mean KL {mean:.5f} is not below {limit}"]))
        return verdicts

    def _last_logits(self, tokens: list[int]) -> NDArray[np.float32]:
        self.context.memory.clear()
        batch = self.context.batch()
        batch.extend(tokens, output=np.arange(len(tokens)) == len(tokens) - 1)
        return self.context.decode(batch).logits(-1)

    def _judge_f32(self, verdict: Verdict, logits: NDArray[np.float32], recorded: dict[str, Any]) -> None:
        if self.context.backend != "reference":
            return
        ids, values = zip(*recorded["top20"], strict=True)
        difference = float(np.abs(logits[list(ids)] - np.array(values)).max())
        self._f32_diff.append(difference)
        limit = MAX_F32_DIFF[self.model.architecture.name]
        verdict.holds(f"max abs difference to float32 weights {difference:.2e} < {limit}", difference < limit)


def gives(path: Path, case: dict[str, Any]) -> bool:
    tokenizer = Tokenizer.from_metadata(GgufFile.open(path).metadata)
    return tokenizer.encode(case["text"]).tolist() == case["tokens"]


def kl_divergence(top: list[list[float]], logits: NDArray[np.float32]) -> float:
    """KL(recorded || ours) in nats, both renormalised over the recorded ids."""
    ids = [int(i) for i, _ in top]
    theirs = log_softmax(np.array([v for _, v in top]))
    ours = log_softmax(logits[ids].astype(np.float64))
    return float((np.exp(theirs) * (theirs - ours)).sum())


def log_softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = x - x.max()
    return shifted - np.log(np.exp(shifted).sum())
