"""The start that several prompts have in common.

Enters: prompts. Leaves: the tokens that need computing only once. A system prompt shared by all questions is
the usual case.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MIN_PREFIX = 8  # below this, sharing saves less than a copy or an extra step costs

NO_PREFIX: NDArray[np.int32] = np.zeros(0, np.int32)
NO_PREFIX.flags.writeable = False


def common_prefix(prompts: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    """Pure. The longest common start of `prompts` ([n_prompt] i32 each), or nothing where sharing does not
    pay.

    Every prompt keeps at least one token of its own: the row whose logits start its answer.
    """
    if len(prompts) < 2:
        return NO_PREFIX
    n = min(map(len, prompts)) - 1
    first = prompts[0]
    for prompt in prompts[1:]:
        if n < MIN_PREFIX:
            return NO_PREFIX
        differs = np.flatnonzero(prompt[:n] != first[:n])
        n = int(differs[0]) if len(differs) else n
    return first[:n] if n >= MIN_PREFIX else NO_PREFIX


def starts_with(tokens: NDArray[np.int32], prefix: NDArray[np.int32]) -> bool:
    """Pure. Whether `tokens` begin with a non-empty `prefix` and go on after it."""
    return 0 < len(prefix) < len(tokens) and bool(np.array_equal(tokens[: len(prefix)], prefix))
