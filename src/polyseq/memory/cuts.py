"""Which cut a memory needs: decided here for every kind, from how many streams its attention part has."""

from __future__ import annotations

from polyseq.split import Equal, Packed, Seq, Simple, Strategy


def attention_cut(*, n_stream: int, packed: bool, embeddings: bool = False) -> Strategy:
    """Pure. For memories whose rows only need cells. `embeddings`: the rows of a sequence come together."""
    if embeddings:
        return Seq()
    if n_stream == 1:
        return Simple()
    return Packed() if packed else Equal(sequential=True)


def state_cut(*, n_stream: int, n_rs_seq: int, embeddings: bool = False) -> Strategy:
    """Pure. For memories with running states, which move on in step. `n_stream`: of an attention part, else any.

    The last rows of a sequence come together where states are kept after each of them.
    """
    if embeddings:
        return Seq()
    return Equal(sequential=n_stream > 1, n_keep_tail=1 + n_rs_seq if n_rs_seq else 0)
