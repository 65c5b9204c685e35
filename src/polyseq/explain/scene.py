"""The drawing for pictures: boxes and words at places, in pixels, before any file format.

Enters: a `Simulation`. Leaves: a `Scene` that `svg` and `png` write; lanes above, a bar per ubatch below.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyseq.explain.blocks import Block, blocks, id_ranges
from polyseq.explain.lanes import Lane, lanes
from polyseq.explain.palette import INK, colour_of, ink_on, letter_of, pale
from polyseq.explain.simulation import Simulation
from polyseq.explain.ways import Ways

WIDTH = 1200
_MARGIN, _LABEL, _COUNT = 20, 110, 60
_LINE, _BOX = 28, 22
_N_LANES, _N_BLOCKS = 64, 64
_BAR = 320  # px for n_ubatch rows
_GREY = "#666666"


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle."""

    x: float
    y: float
    w: float
    h: float
    fill: str
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """Text on the middle line `y`; `x` is its `anchor`: start, middle or end."""

    x: float
    y: float
    text: str
    ink: str = INK
    size: int = 15
    anchor: str = "start"
    bold: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything drawn, back to front."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    words: tuple[Words, ...]


def scene(simulation: Simulation, found: Ways, *, title: str = "") -> Scene:
    """Pure. The cut of one batch as a picture `WIDTH` pixels wide; a page has a title of its own."""
    boxes: list[Box] = []
    words = [Words(_MARGIN, 26, title, size=17, bold=True)] if title else []
    y = _draw_lanes(lanes(simulation, found), 52 if title else 20, boxes, words)
    y = _draw_blocks(blocks(simulation), simulation.sizes.n_ubatch, y + 20, boxes, words)
    return Scene(WIDTH, y + _MARGIN, tuple(boxes), tuple(words))


def _draw_lanes(drawn: list[Lane], y: int, boxes: list[Box], words: list[Words]) -> int:
    """Changes boxes and words; the first free line below."""
    x0 = _MARGIN + _LABEL
    longest = max(lane.n_tokens for lane in drawn)
    per_token = min(30.0, (WIDTH - x0 - _MARGIN - _COUNT) / longest)
    words.append(Words(_MARGIN, y, "sequence", _GREY, 13))
    words.append(Words(x0, y, "its tokens, each in the ubatch of that letter", _GREY, 13))
    y += _LINE
    for lane in drawn[:_N_LANES]:
        words.append(Words(x0 - 12, y, lane.label, anchor="end"))
        for i, n, u, own in lane.segments():
            step = 1 if per_token >= 16 else n  # a box per token where a letter fits in it
            for j in range(i, i + n, step):
                _draw_tokens(x0 + j * per_token, y, step, per_token, u, own, boxes, words)
        words.append(Words(x0 + lane.n_tokens * per_token + 8, y, str(lane.n_tokens), _GREY, 13))
        y += _LINE
    notes = []
    if len(drawn) > _N_LANES:
        notes.append(f"and {sum(lane.last - lane.first + 1 for lane in drawn[_N_LANES:])} sequences more")
    if any(not lane.own.all() for lane in drawn):
        notes.append("small letters: rows shared with a lower sequence, computed once")
    for note in notes:
        words.append(Words(x0, y, note, _GREY, 13))
        y += _LINE
    return y


def _draw_tokens(
    x: float, y: float, n: int, per_token: float, u: int, own: bool, boxes: list[Box], words: list[Words]
) -> None:
    """Changes boxes and words: n tokens of one ubatch, with its letter where there is room for it."""
    colour = colour_of(u) if own else pale(colour_of(u))
    letter = letter_of(u) if own else letter_of(u).lower()
    w = n * per_token
    boxes.append(Box(x, y - _BOX / 2, w - min(1.5, w / 4), _BOX, colour, f"ubatch {letter_of(u)}: {n}"))
    label = f"{letter} {n}" if n > 1 and w >= 10 * len(f"{letter} {n}") else letter
    if w >= 9 * len(label):
        words.append(Words(x + w / 2, y, label, ink_on(colour), 13, "middle", bold=True))


def _draw_blocks(drawn: list[Block], n_ubatch: int, y: int, boxes: list[Box], words: list[Words]) -> int:
    """Changes boxes and words; the first free line below."""
    x0 = _MARGIN + _LABEL
    columns = (x0 + _BAR + 20, x0 + _BAR + 130, x0 + _BAR + 250, x0 + _BAR + 430)
    words.append(Words(_MARGIN, y, "ubatch", _GREY, 13))
    words.append(Words(x0, y, f"its rows, of n_ubatch {n_ubatch}", _GREY, 13))
    for x, head in zip(columns, ("shape", "rows", "ended because", "sequences"), strict=True):
        words.append(Words(x, y, head, _GREY, 13))
    y += _LINE
    for block in drawn[:_N_BLOCKS]:
        colour = colour_of(block.first)
        words.append(Words(x0 - 12, y, block.label, anchor="end", size=15 if len(block.label) < 10 else 12))
        boxes.append(Box(x0, y - _BOX / 2, _BAR, _BOX, "#E8E8E8", "room in the ubatch"))
        w = _BAR * block.n_tokens / n_ubatch
        boxes.append(Box(x0, y - _BOX / 2, w, _BOX, colour, f"{block.n_tokens} rows"))
        if w > 24:
            words.append(Words(x0 + w / 2, y, letter_of(block.first), ink_on(colour), 13, "middle", bold=True))
        cells = (block.shape, f"{block.n_tokens} of {n_ubatch}", block.reason, id_ranges(block.seq_ids, 4))
        words += [Words(x, y, cell) for x, cell in zip(columns, cells, strict=True)]
        y += _LINE
    if len(drawn) > _N_BLOCKS:
        words.append(Words(x0, y, f"and {len(drawn) - _N_BLOCKS} lines more", _GREY, 13))
        y += _LINE
    return y
