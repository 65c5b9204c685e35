"""A simulation for programs: plain lists and numbers, every field of every ubatch.

Enters: a `Simulation` and views of it. Leaves: dicts that `json` takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from polyseq.explain.compare import Candidate
from polyseq.explain.simulation import Simulation
from polyseq.explain.ways import Ways
from polyseq.memory import Slot
from polyseq.split import Ubatch


def document(simulation: Simulation, found: Ways) -> dict[str, Any]:
    """Pure. `settings`, `notes`, `ubatches`, `slots`, `ways` (columns over batch rows) and totals."""
    sizes, spec = simulation.sizes, simulation.spec
    return {
        "settings": {
            "memory": spec.memory,
            "strategy": spec.strategy_name,
            "n_keep_tail": spec.n_keep_tail,
            "n_swa": spec.example.n_swa,
            "n_ctx": sizes.n_ctx,
            "n_ctx_seq": sizes.n_ctx_seq,
            "n_seq_max": sizes.n_seq_max,
            "n_batch": sizes.n_batch,
            "n_ubatch": sizes.n_ubatch,
            "held": list(spec.held),
        },
        "notes": list(sizes.notes),
        "ubatches": [_ubatch(u) for u in simulation.ubatches],
        "slots": [_slot(s) for s in simulation.slots],
        "ways": {
            "batch_row": list(range(simulation.n_tokens)),
            "ubatch": found.ubatch.tolist(),
            "ubatch_row": found.ubatch_row.tolist(),
            "stream": found.stream.tolist(),
            "cell": found.cell.tolist(),
            "output_row": found.output_row.tolist(),
        },
        "n_tokens": simulation.n_tokens,
        "n_outputs": simulation.checked.n_outputs,
        "n_ubatches": len(simulation.ubatches),
        "tokens_per_ubatch": spread(simulation.block_tokens.tolist()),
        "fill_percent": round(100 * simulation.fill, 1),
    }


def candidate_document(candidate: Candidate) -> dict[str, Any]:
    """Pure. One line of a comparison."""
    head = {"name": candidate.name, "chosen": candidate.chosen}
    if candidate.refusal is not None:
        return {**head, "refusal": candidate.refusal}
    return {
        **head,
        "n_blocks": len(candidate.blocks),
        "tokens_per_block": spread(candidate.blocks),
        "blocks": list(candidate.blocks),
        "shapes": [{"shape": shape, "count": n} for shape, n in candidate.shapes],
        "fill_percent": round(100 * candidate.fill, 1),
        "seconds": candidate.seconds,
    }


def spread(values: Sequence[int]) -> dict[str, float]:
    """Pure. Least, median and most."""
    median = float(np.median(values))
    return {"min": min(values), "median": int(median) if median.is_integer() else median, "max": max(values)}


def _ubatch(u: Ubatch) -> dict[str, Any]:
    ids = u.seq_ids.tolist()
    bounds = u.seq_offsets.tolist()
    return {
        "equal_seqs": u.equal_seqs,
        "n_tokens": u.n_tokens,
        "n_seqs": u.n_seqs,
        "n_seq_tokens": u.n_seq_tokens,
        "n_seqs_unq": u.n_seqs_unq,
        "n_pos": u.n_pos,
        "reason": u.reason,
        "token": None if u.token is None else u.token.tolist(),
        "pos": u.pos.reshape(-1).tolist(),
        "seq_ids": [ids[a:b] for a, b in pairwise(bounds)],
        "seq_id_unq": u.seq_id_unq.tolist(),
        "seq_idx": u.seq_idx.tolist(),
        "output": u.output.tolist(),
        "batch_idxs": u.batch_idxs.tolist(),
        "rows": u.batch_idxs.tolist(),  # of the batch, in ubatch order
    }


def _slot(slot: Slot) -> dict[str, Any]:
    return {"streams": slot.streams.tolist(), "row_stream": slot.row_stream.tolist(), "cells": slot.cells.tolist()}
