"""A context shift (llama.cpp's): a middle part of a sequence is taken out, and what follows moves up."""

from __future__ import annotations

from polyseq.errors import CapabilityError
from polyseq.memory.memory import Memory


def drop_middle(memory: Memory, seq_id: int, *, n_keep: int, n_discard: int | None) -> int:
    """Changes the memory: `n_discard` positions (None: half) after the first `n_keep` go. How many went.

    Raises `CapabilityError` saying why, and then nothing has changed.
    """
    with memory.lock:
        n_past = memory.pos_max(seq_id) + 1
        n_gone = (n_past - n_keep) // 2 if n_discard is None else n_discard
        if not (n_keep >= 0 and 0 < n_gone <= n_past - n_keep):
            raise CapabilityError(f"sequence {seq_id} holds {n_past} positions: {n_gone} after {n_keep} cannot go")
        why_not = memory.why_no_drop(seq_id, n_keep, n_keep + n_gone)
        if why_not:
            raise CapabilityError(f"the context of sequence {seq_id} cannot be shifted: {why_not}")
        memory.rm(seq_id, n_keep, n_keep + n_gone)
        memory.add(seq_id, n_keep + n_gone, -1, -n_gone)
        return n_gone
