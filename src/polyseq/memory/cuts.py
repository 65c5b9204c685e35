"""Which cut a memory needs: decided here for every kind, from how many streams its attention part has."""

from __future__ import annotations

from polyseq.split import Equal, Packed, Simple, Strategy


def attention_cut(*, n_stream: int, packed: bool) -> Strategy:
    """Pure. For memories whose rows only need cells."""
    if n_stream == 1:
        return Simple()
    return Packed() if packed else Equal(sequential=True)
