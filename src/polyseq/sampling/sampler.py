"""One sequence's sampler: its parameters, its random generator, its window of recent tokens.

Enters: one row of logits at a time. Leaves: a token id. The chain is llama.cpp's default order: penalties,
top-k, top-p, min-p, temperature, draw; so top-p and min-p see the distribution at temperature 1.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import SamplingError
from polyseq.sampling.filters import Candidates, min_p, penalise, top_k, top_p
from polyseq.sampling.params import SamplingParams


class Sampler:
    """Draws the tokens of one sequence; a generator and a window of its own, shared with nobody.

    Every draw takes exactly one uniform number, whatever the filters left, so two samplers with one seed that
    see the same logits stay in step.
    """

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self.seed = fresh_seed() if params.seed is None else params.seed
        self._random: np.random.Generator | None = None  # until the first draw: a greedy start loads no `numpy.random`
        self._recent: deque[int] = deque()
        self._counts: Counter[int] = Counter()

    def accept(self, token: int) -> None:
        """Changes the window: `token` is what the sequence said last."""
        last_n = self.params.penalty_last_n
        if not self.params.penalises:
            return
        self._counts[token] += 1
        if last_n < 0:
            return
        self._recent.append(token)
        if len(self._recent) > last_n:
            oldest = self._recent.popleft()
            self._counts[oldest] -= 1
            if self._counts[oldest] == 0:
                del self._counts[oldest]

    def accept_prompt(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Changes the window: `tokens` [n] stand before the first draw; the penalties see them as well."""
        last_n = self.params.penalty_last_n
        seen = np.asarray(tokens)
        for token in (seen if last_n < 0 else seen[max(len(seen) - last_n, 0) :]).tolist():
            self.accept(token)

    def sample(self, logits: NDArray[np.float32]) -> int:
        """Changes the generator (one number, none when greedy). The next token for `logits` [n_vocab] f32.

        The draw inverts the cumulative distribution over *ascending ids*: rounding noise in the logits moves
        its steps by as little, while in an order by probability two near-equal tokens could swap places.
        Raises SamplingError where `probs` does.
        """
        ids, probs = self.probs(logits)
        if self.params.temperature == 0.0:
            return int(ids[0])
        if self._random is None:
            self._random = np.random.Generator(np.random.PCG64(self.seed))
        steps = np.cumsum(probs)
        row = np.searchsorted(steps, self._random.random() * steps[-1], side="right")
        return int(ids[min(int(row), len(ids) - 1)])

    def probs(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Pure. What may be drawn after the whole chain: ids [n] ascending, probabilities [n] f64 (sum 1).

        `logits` [n_vocab] f32 is not modified. Temperature 0 leaves the likeliest (lowest id of equals).
        Raises SamplingError for a row with NaN or +inf in it, or with nothing above -inf.
        """
        row = self._penalised(_checked(logits))
        if self.params.temperature == 0.0:
            return np.array([row.argmax()], np.int64), np.ones(1, np.float64)
        kept = top_k(Candidates(np.arange(len(row)), row), self.params.top_k)
        kept = min_p(top_p(kept, self.params.top_p), self.params.min_p)
        return _softmax(kept, self.params.temperature)

    def _penalised(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self._counts:
            return logits
        tokens = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
        counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
        if tokens.max() >= len(logits) or tokens.min() < 0:
            raise SamplingError(
                f"accepted tokens span {tokens.min()}..{tokens.max()}, the row of logits has {len(logits)}"
            )
        params = self.params
        return _checked(
            penalise(
                logits,
                tokens,
                counts,
                repeat=params.repeat_penalty,
                frequency=params.frequency_penalty,
                presence=params.presence_penalty,
            )
        )


def _checked(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    row = np.asarray(logits, dtype=np.float32)
    if row.ndim != 1 or row.size == 0:
        raise SamplingError(f"a row of logits [n_vocab] is needed, found shape {row.shape}")
    peak = row.max()  # NaN wins any maximum
    if np.isnan(peak):
        raise SamplingError(f"logits hold NaN, first at token {int(np.isnan(row).argmax())}")
    if np.isinf(peak):
        what = "no token has a logit above -inf" if peak < 0 else f"token {int(row.argmax())} has the logit +inf"
        raise SamplingError(f"nothing can be drawn: {what}")
    return row


def _softmax(candidates: Candidates, temperature: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    weights = candidates.logits.astype(np.float64)
    weights -= weights.max()
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the likeliest to -inf, which is meant
        weights /= temperature
    np.exp(weights, out=weights)
    alive = np.flatnonzero(weights)
    weights = weights[alive]
    weights /= weights.sum()
    return candidates.ids[alive], weights


def fresh_seed() -> int:
    """A seed nobody chose: 32 bits from the system, enough to differ and short enough to be typed again."""
    return int.from_bytes(os.urandom(4))
