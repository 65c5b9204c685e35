"""From one row of logits to the next token of one sequence.

Enters: a row of logits and what the sequence said so far. Leaves: a token id. Each sequence owns its sampler,
so what it draws does not depend on who shares its batch. Stands beside the pipeline; imports only errors.
"""

from polyseq.sampling.params import SamplingParams
from polyseq.sampling.sampler import Sampler, fresh_seed

__all__ = ["Sampler", "SamplingParams", "fresh_seed"]
