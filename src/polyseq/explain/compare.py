"""The same batch, cut by each strategy and scheduled as two neighbours would: how many blocks, how full, which shapes.

Enters: a `Simulation`, perhaps a cost model. Leaves: a `Candidate` for each way, with the time that the model expects.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import BatchError, SplitError
from polyseq.explain.cost import CostModel
from polyseq.explain.shapes import UbatchShape
from polyseq.explain.simulation import Simulation
from polyseq.explain.spec import STRATEGIES, cut_named
from polyseq.split import Ubatch, split_all

ABOUT = {
    "simple": "rows as they come",
    "equal": "as many rows of each sequence",
    "packed": "ours: rows as they come, each into its own stream, where the backend needs no rectangles",
    "seq": "one sequence set after the other",
    "whole": "as many whole sequences as fit, the longest first",
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
    seconds: float | None = None  # with a cost model: one call over these blocks


@dataclass(frozen=True, slots=True)
class _Request:
    """A sequence as a neighbour's scheduler sees it."""

    n_held: int
    n_rows: int  # still to compute
    n_outputs: int


def compare(simulation: Simulation, cost: CostModel | None = None) -> list[Candidate]:
    """Pure. The cuts, then the neighbours.

    The neighbours take each sequence as a request with its rows still to compute: one that memory holds is running,
    and with a single row it is decoding. A row shared by several sequences is computed once, by the lowest, as their
    prefix caches would have it. A block holds `n_ubatch` tokens for all; their pools of cells are taken as one, of
    which a row's attention reads its own request's. Time is what the measured machine would take for such blocks.
    """
    budget = simulation.sizes.n_ubatch
    running, waiting, decoding = _requests(simulation)
    steps = {
        "token-budget": _in_order([*decoding, *running, *waiting], budget),
        "prefill-adder": [*_in_order([*running, *waiting], budget), *_in_order(decoding, budget)],
    }
    neighbours = []
    for name, made in steps.items():
        rows = [tuple(n for _, n in block) for block in made]
        neighbours.append(_candidate(name, rows, budget, seconds=_seconds(cost, _request_shapes(made))))
    # Where memory keeps what was computed, no sequence has to be whole; only streams tell packed from simple.
    own = [cut.name for cut in simulation.spec.example.cuts]
    cuts = [name for name in STRATEGIES if name not in ("whole", "packed") or name in own]
    return [*(_strategy(simulation, name, cost) for name in cuts), *neighbours]


def _strategy(simulation: Simulation, name: str, cost: CostModel | None) -> Candidate:
    spec, budget = simulation.spec, simulation.sizes.n_ubatch
    chosen = name == spec.strategy_name
    try:
        cut = cut_named(name, spec.example)
        ubatches = simulation.ubatches if chosen else split_all(simulation.checked, cut, budget)
    except (SplitError, BatchError) as error:
        return Candidate(name, False, (), (), 0.0, str(error))
    made = [_rows_of_sets(u) for u in ubatches]
    seconds = _seconds(cost, _ubatch_shapes(ubatches, simulation))
    return _candidate(name, made, budget, chosen=chosen, seconds=seconds)


def _rows_of_sets(ubatch: Ubatch) -> tuple[int, ...]:
    """Pure. Rows of each sequence set; those of ragged ubatches have one sequence each."""
    if ubatch.n_seq_tokens:
        return (ubatch.n_seq_tokens,) * ubatch.n_seqs
    return tuple(np.bincount(ubatch.seq_idx[ubatch.first_seq]).tolist())


def _seconds(cost: CostModel | None, shapes: Sequence[UbatchShape]) -> float | None:
    return None if cost is None else cost.seconds(*shapes)


def _ubatch_shapes(ubatches: Sequence[Ubatch], simulation: Simulation) -> list[UbatchShape]:
    """Pure. As if cells had been taken one after the other."""
    n_used, unified, shapes = sum(simulation.spec.held), simulation.sizes.unified, []
    for u in ubatches:
        n_used += u.n_tokens
        span = n_used if unified else int(u.pos[0].max()) + 1
        n_seqs = u.n_seqs_unq
        n_visible = int(u.pos[0].sum(dtype=np.int64)) + u.n_tokens
        n_hidden = max(u.n_tokens * span - n_visible, 0)
        n_read = span if unified else span * n_seqs
        shapes.append(
            UbatchShape(u.n_tokens, int(np.count_nonzero(u.output)), n_visible, n_hidden, n_read, n_seqs, unified)
        )
    return shapes


def _request_shapes(blocks: Sequence[Sequence[tuple[_Request, int]]]) -> list[UbatchShape]:
    """Pure. Each row sees its own request's cells and nothing else is read; outputs come with a request's last row."""
    done: Counter[int] = Counter()
    shapes = []
    for block in blocks:
        n_visible = n_read = n_outputs = 0
        for request, n in block:
            n_past = request.n_held + done[id(request)]
            done[id(request)] += n
            n_visible += n * n_past + n * (n + 1) // 2
            n_read += n_past + n
            n_outputs += request.n_outputs if done[id(request)] == request.n_rows else 0
        n_tokens = sum(n for _, n in block)
        shapes.append(UbatchShape(n_tokens, min(n_outputs, n_tokens), n_visible, 0, n_read, len(block), False))
    return shapes


def _requests(simulation: Simulation) -> tuple[list[_Request], list[_Request], list[_Request]]:
    """The requests that are (running, waiting, decoding), by sequence id."""
    batch = simulation.checked
    counts = np.bincount(batch.first_seq, minlength=batch.n_seq_max)
    outputs = np.bincount(batch.first_seq[batch.output], minlength=batch.n_seq_max)
    held = np.zeros(batch.n_seq_max, np.intp)
    held[: len(simulation.spec.held)] = simulation.spec.held
    there, begun, one = counts > 0, held > 0, counts == 1

    def of(which: NDArray[np.bool_]) -> list[_Request]:
        return [_Request(*row) for row in np.column_stack((held, counts, outputs))[which].tolist()]

    return of(there & begun & ~one), of(there & ~begun), of(there & begun & one)


def _in_order(requests: Sequence[_Request], budget: int) -> list[list[tuple[_Request, int]]]:
    """Blocks of at most `budget` tokens: requests in order; one that does not fit whole is cut and goes on first."""
    queue, made = deque((r, r.n_rows) for r in requests), []
    while queue:
        block: list[tuple[_Request, int]] = []
        room = budget
        while queue and room:
            request, left = queue.popleft()
            n = min(left, room)
            block.append((request, n))
            room -= n
            if n < left:
                queue.appendleft((request, left - n))
        made.append(block)
    return made


def _candidate(
    name: str,
    made: Sequence[tuple[int, ...]],
    budget: int,
    *,
    chosen: bool = False,
    seconds: float | None = None,
) -> Candidate:
    """From the rows of each sequence in each block."""
    blocks = tuple(sum(block) for block in made)
    shapes = Counter(map(_shape, made)).most_common()
    fill = sum(blocks) / (len(blocks) * budget)
    return Candidate(name, chosen, blocks, tuple(shapes), fill, seconds=seconds)


def _shape(block: tuple[int, ...]) -> str:
    """(2, 2, 2) -> '3x2', (5, 3) -> '5+3', many unequal ones -> '9 seqs x 1..5'."""
    least, most = min(block), max(block)
    if least == most:
        return f"{len(block)}x{most}"
    return "+".join(map(str, block)) if len(block) <= 4 else f"{len(block)} seqs x {least}..{most}"
