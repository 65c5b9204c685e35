"""The drawing for a terminal: a lane per sequence, a letter and a colour per ubatch, then a line per ubatch.

Enters: lanes and blocks. Leaves: lines of rich `Text`, at most `width` characters wide.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.style import Style
from rich.text import Text

from polyseq.explain.blocks import Block
from polyseq.explain.lanes import Lane
from polyseq.explain.palette import N_COLOURS, colour_of, ink_on, letter_of
from polyseq.explain.tables import block_listing

N_LANES_SHOWN = 40
N_BLOCKS_SHOWN = 60
_STYLES = [Style(color=ink_on(colour_of(i)), bgcolor=colour_of(i)) for i in range(N_COLOURS)]


def grid(lanes: Sequence[Lane], *, width: int) -> list[Text]:
    """Pure. Rows are sequences, columns tokens of that sequence.

    Long sequences are drawn at a scale: a letter stands for several tokens and shows the ubatch of most of them.
    """
    shown = lanes[:N_LANES_SHOWN]
    n_label = max(len("sequence"), *(len(lane.label) for lane in shown))
    n_count = max(len(str(lane.n_tokens)) for lane in shown)
    room = max(10, width - n_label - n_count - 4)
    scale = _scale(max(lane.n_tokens for lane in shown), room)
    lines = [Text(f"{'sequence':>{n_label}}  {_ruler(shown, scale, room)}".rstrip(), style="dim")]
    for lane in shown:
        line = Text(f"{lane.label:>{n_label}}  ")
        _draw(line, lane, scale)
        line.append(f"  {lane.n_tokens}", style="dim")
        lines.append(line)
    lines += [Text(note, style="dim") for note in _notes(lanes, scale)]
    return lines


def block_lines(blocks: Sequence[Block], *, n_ubatch: int, width: int) -> list[Text]:
    """Pure. Per ubatch: letter, shape (sequence sets x rows of each), rows, fill, why it ended, sequences."""
    shown = blocks[:N_BLOCKS_SHOWN]
    head, *rows = block_listing(shown, n_ubatch).lines()
    lines = [Text(head[:width], style="dim")]
    for block, row in zip(shown, rows, strict=True):
        line = Text(row if len(row) <= width else row[: width - 1] + "…")
        line.stylize(_STYLES[block.first % N_COLOURS], 0, len(letter_of(block.first)))
        lines.append(line)
    if len(blocks) > len(shown):
        lines.append(Text(f"and {len(blocks) - len(shown)} lines more; --json and --html have all", style="dim"))
    return lines


def _scale(n_tokens: int, room: int) -> int:
    """Tokens per letter: the smallest power of two that lets the longest lane fit."""
    return 1 << max(0, (-(-n_tokens // room) - 1).bit_length())


def _ruler(lanes: Sequence[Lane], scale: int, room: int) -> str:
    """Token numbers above every tenth letter."""
    n_letters = -(-max(lane.n_tokens for lane in lanes) // scale)
    step = 10 if scale < 10**5 else 20
    return "".join(f"{i * scale:<{step}}" for i in range(0, min(n_letters, room), step)).rstrip()


def _draw(line: Text, lane: Lane, scale: int) -> None:
    """Changes the line: a letter per `scale` tokens, small where the row belongs to a lower sequence."""
    at = _tokens_shown(lane, scale)
    for _, n, i, own in Lane(lane.first, lane.last, lane.ubatch[at], lane.own[at]).segments():
        letter = letter_of(i)[0]
        line.append((letter if own else letter.lower()) * n, style=_STYLES[i % N_COLOURS])


def _tokens_shown(lane: Lane, scale: int) -> NDArray[np.intp]:
    """[n_letters] the token that each letter shows: the middle one of its share.

    A piece that no middle falls into takes a letter from a longer one, so that a single token does not vanish.
    """
    starts = np.arange(0, lane.n_tokens, scale)
    at = (starts + np.minimum(starts + scale, lane.n_tokens) - 1) // 2
    if scale == 1:
        return at
    first = np.array([i for i, _, _, _ in lane.segments()])
    piece = first.searchsorted(at, side="right") - 1
    n_letters = np.bincount(piece, minlength=len(first))
    for k in np.flatnonzero(n_letters == 0):
        i = int(first[k]) // scale
        if n_letters[piece[i]] > 1:
            n_letters[piece[i]] -= 1
            at[i], piece[i], n_letters[k] = first[k], k, 1
    return at


def _notes(lanes: Sequence[Lane], scale: int) -> list[str]:
    notes = []
    if scale > 1:
        notes.append(f"one letter = {scale} tokens, shown by the ubatch of most of them")
    if any(not lane.own.all() for lane in lanes):
        notes.append("small letters: rows shared with a lower sequence, computed once")
    if len(lanes) > N_LANES_SHOWN:
        more = lanes[N_LANES_SHOWN:]
        n = sum(lane.last - lane.first + 1 for lane in more)
        notes.append(f"and {n} sequences more; --json has all")
    return notes
