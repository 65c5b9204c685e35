"""The same batch, cut by each strategy and scheduled as two neighbours would: how many blocks, how full, which shapes.

Enters: a `Simulation`. Leaves: a `Candidate` for each way. Counts only; what a block costs is another question.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyseq.errors import SplitError
from polyseq.explain.simulation import Simulation
from polyseq.explain.spec import STRATEGIES, cut_named
from polyseq.split import split_all

ABOUT = {
    "simple": "rows as they come",
    "equal": "as many rows of each sequence",
    "seq": "one sequence set after the other",
    "token-budget": "like vLLM V1: running requests first, then prompts in chunks, ragged",
    "prefill-adder": "like SGLang: whole prompts and one cut into an extend; decoding in blocks of its own",
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to compute the batch. Where it is refused, `refusal` says why and the rest is empty."""

    name: str
    chosen: bool  # this is how the simulation was cut
    blocks: tuple[int, ...]  # tokens of each computed block
    shapes: tuple[tuple[str, int], ...]  # distinct shapes and how often, commonest first
    fill: float  # tokens of all that the blocks could have held, 0 to 1
    refusal: str | None = None


def compare(simulation: Simulation) -> list[Candidate]:
    """Pure. The cuts, then the neighbours.

    The neighbours take each sequence as a request with its rows still to compute: one that memory holds is running,
    and with a single row it is decoding. A row shared by several sequences is computed once, by the lowest, as their
    prefix caches would have it. A block holds `n_ubatch` tokens for all; their pools of cells are taken as one.
    """
    budget = simulation.sizes.n_ubatch
    running, waiting, decoding = _requests(simulation)
    steps = {
        "token-budget": _in_order([*decoding, *running, *waiting], budget),
        "prefill-adder": [*_in_order([*running, *waiting], budget), *_in_order(decoding, budget)],
    }
    neighbours = [_candidate(name, [tuple(s) for s in made], budget) for name, made in steps.items()]
    return [*(_strategy(simulation, name) for name in STRATEGIES), *neighbours]


def _strategy(simulation: Simulation, name: str) -> Candidate:
    spec, budget = simulation.spec, simulation.sizes.n_ubatch
    if name == spec.strategy_name:
        return _candidate(name, [(u.n_seq_tokens,) * u.n_seqs for u in simulation.ubatches], budget, chosen=True)
    try:
        ubatches = split_all(simulation.checked, cut_named(name, memory=spec.memory), budget)
    except SplitError as error:
        return Candidate(name, False, (), (), 0.0, str(error))
    return _candidate(name, [(u.n_seq_tokens,) * u.n_seqs for u in ubatches], budget)


def _requests(simulation: Simulation) -> tuple[list[int], list[int], list[int]]:
    """Rows still to compute of each request: (running, waiting, decoding), by sequence id."""
    batch = simulation.checked
    counts = np.bincount(batch.first_seq, minlength=batch.n_seq_max)
    held = np.zeros(batch.n_seq_max, np.intp)
    held[: len(simulation.spec.held)] = simulation.spec.held
    there, begun, one = counts > 0, held > 0, counts == 1
    running, waiting, decoding = there & begun & ~one, there & ~begun, there & begun & one
    return counts[running].tolist(), counts[waiting].tolist(), counts[decoding].tolist()


def _in_order(requests: Sequence[int], budget: int) -> list[list[int]]:
    """Blocks of at most `budget` tokens: requests in order; one that does not fit whole is cut and goes on first."""
    queue, made = deque(requests), []
    while queue:
        block: list[int] = []
        room = budget
        while queue and room:
            n = min(queue[0], room)
            block.append(n)
            room -= n
            if n == queue[0]:
                queue.popleft()
            else:
                queue[0] -= n
        made.append(block)
    return made


def _candidate(name: str, made: Sequence[tuple[int, ...]], budget: int, *, chosen: bool = False) -> Candidate:
    """From the rows of each sequence in each block."""
    blocks = tuple(sum(block) for block in made)
    shapes = Counter(map(_shape, made)).most_common()
    return Candidate(name, chosen, blocks, tuple(shapes), sum(blocks) / (len(blocks) * budget))


def _shape(block: tuple[int, ...]) -> str:
    """(2, 2, 2) -> '3x2', (5, 3) -> '5+3', many unequal ones -> '9 seqs x 1..5'."""
    least, most = min(block), max(block)
    if least == most:
        return f"{len(block)}x{most}"
    return "+".join(map(str, block)) if len(block) <= 4 else f"{len(block)} seqs x {least}..{most}"
