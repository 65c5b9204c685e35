"""What a run cost: tokens and seconds, prompt and generation kept apart.

Filled by the engine after every decode. A step that carries both kinds of rows is charged to both by their
number of rows; drawing tokens is charged to generation.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EngineStats:
    """Running sums of one engine."""

    n_prompt_tokens: int = 0  # of all prompts that ran, as submitted
    n_prompt_rows: int = 0  # computed; fewer where a prefix was shared
    n_gen_rows: int = 0  # drawn tokens fed back and computed (an answer's first comes out of its prompt)
    n_sampled: int = 0
    prompt_s: float = 0.0
    gen_s: float = 0.0
    n_decode: int = 0
    n_ubatches: int = 0
    plan_hits: int = 0  # ubatches that found their compute plan ready
    plan_misses: int = 0
    n_refused: int = 0  # batches answered with "no slot"

    @property
    def prompt_per_s(self) -> float:
        """Prompt rows computed per second; 0 before any."""
        return self.n_prompt_rows / self.prompt_s if self.prompt_s else 0.0

    @property
    def gen_per_s(self) -> float:
        """Generated tokens computed per second, all sequences together; 0 before any."""
        return self.n_gen_rows / self.gen_s if self.gen_s else 0.0
