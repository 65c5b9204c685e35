"""What one sequence asks of its sampler.

Enters: numbers from a caller (library, command line, server). Leaves: a value that is known to be in range,
from which a `Sampler` is made. Stands beside the pipeline, after outputs; imports nothing but errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from polyseq.errors import SamplingError

SEED_MAX = 2**64 - 1
MOST = 1e30  # of a penalty: logits are float32


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Pure. The parameters of one sequence; defaults are those of llama.cpp's common sampler.

    Raises SamplingError naming parameter, value and range. Each filter has a value that turns it off:
    `top_k` 0, `top_p` 1, `min_p` 0, `repeat_penalty` 1, the other two penalties 0, `penalty_last_n` 0.
    """

    temperature: float = 0.8  # 0 = greedy: the largest logit after the penalties
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05  # relative to the probability of the likeliest token
    repeat_penalty: float = 1.0  # positive logits are divided by it, others multiplied (CTRL, arXiv:1909.05858)
    frequency_penalty: float = 0.0  # subtracted once per occurrence in the window
    presence_penalty: float = 0.0  # subtracted once if in the window at all
    penalty_last_n: int = 64  # window of recent tokens the penalties look at, prompt included; -1 = all of them
    seed: int | None = None  # None = a fresh seed per sampler, readable as `Sampler.seed`

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, math.inf)
        _check_int("top_k", self.top_k, 0, None)
        _check("top_p", self.top_p, 0.0, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("repeat_penalty", self.repeat_penalty, 1 / MOST, MOST)
        _check("frequency_penalty", self.frequency_penalty, -MOST, MOST)
        _check("presence_penalty", self.presence_penalty, -MOST, MOST)
        _check_int("penalty_last_n", self.penalty_last_n, -1, None)
        if self.seed is not None:
            _check_int("seed", self.seed, 0, SEED_MAX)

    @property
    def penalises(self) -> bool:
        """Pure. Whether any penalty can change a logit."""
        wanted = self.repeat_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0
        return wanted and self.penalty_last_n != 0


def _check(name: str, value: float, low: float, high: float) -> None:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if number and math.isfinite(value) and low <= value <= high:
        return
    if math.isfinite(high):
        wanted = f"within [{low:g}, {high:g}]"
    else:
        wanted = f"a finite number >= {low:g}" if math.isfinite(low) else "a finite number"
    raise SamplingError(f"{name} {value!r} is not {wanted}")


def _check_int(name: str, value: int, low: int, high: int | None) -> None:
    if (
        isinstance(value, int | np.integer)
        and not isinstance(value, bool)
        and value >= low
        and (high is None or value <= high)
    ):
        return
    wanted = f"an integer >= {low}" if high is None else f"an integer within [{low}, {high}]"
    raise SamplingError(f"{name} {value!r} is not {wanted}")
