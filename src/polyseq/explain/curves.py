"""What was measured, as curves: dots for medians, a line for the cost model. In a terminal, and as SVG.

Enters: `Measured`. Leaves: `Curve`s, then lines of text or one `<svg>` element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import log10

import numpy as np

from polyseq.explain.measure import Measured
from polyseq.explain.palette import INK, PAPER

_COLOURS = ("#0072B2", "#D55E00")  # of the palette: dark enough for lines; the marks differ too
_W, _H = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 24, 62, 46
_GREY, _FAINT = "#666666", "#DDDDDD"
_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Line:
    """One kind of call: x ascending, what was measured, what the model says."""

    name: str
    x: tuple[int, ...]
    measured: tuple[float, ...]
    model: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """One picture; y in `unit`."""

    title: str
    x_name: str
    unit: str
    lines: tuple[Line, ...]


def curves(measured: Measured) -> tuple[Curve, ...]:
    """Pure. Time against rows, sequences and cells; rows per second; bytes against rows. Empty ones are left out."""
    rows = _line(measured, "one prompt", "rows", None)
    rate = Line(
        rows.name,
        rows.x,
        tuple(x / (s / 1e3) for x, s in zip(rows.x, rows.measured, strict=True)),
        tuple(x / (s / 1e3) for x, s in zip(rows.x, rows.model, strict=True)),
    )
    kinds = (("unified", True), ("streams", False))
    found = (
        Curve("Step time against rows of one ubatch", "rows", "ms", (rows,)),
        Curve("Rows per second against rows of one ubatch", "rows", "rows/s", (rate,)),
        Curve(
            "Step time against decoding sequences",
            "sequences of 16 cells",
            "ms",
            tuple(_line(measured, name, "sequences", unified) for name, unified in kinds),
        ),
        Curve(
            "Step time against cells held",
            "cells held by each of the sequences",
            "ms",
            tuple(_line(measured, f"{n} {name}", "cells", unified, n) for n in (1, 8) for name, unified in kinds),
        ),
        Curve("Memory of a call against rows", "rows", "MiB", (_byte_line(measured),)),
    )
    kept = (Curve(c.title, c.x_name, c.unit, tuple(line for line in c.lines if len(line.x) > 1)) for c in found)
    return tuple(curve for curve in kept if curve.lines)


def _line(measured: Measured, name: str, curve: str, unified: bool | None, n_seqs: int | None = None) -> Line:
    cost = measured.cost
    found = sorted(
        (point.past[0] if curve == "cells" else point.n_rows, o.median * 1e3, cost.seconds(*o.shapes) * 1e3)
        for point, o in zip(measured.points, measured.observations, strict=True)
        if point.curve == curve and unified in (None, point.unified) and n_seqs in (None, len(point.rows))
    )
    return _columns(name, found)


def _byte_line(measured: Measured) -> Line:
    use = measured.memory
    found = sorted(
        (point.n_rows, n / 2**20, use.n_bytes(shape) / 2**20)
        for point, shape, n in zip(measured.byte_points, measured.byte_shapes, measured.n_bytes, strict=True)
        if point.curve == "rows"
    )
    return _columns("one prompt", found)


def _columns(name: str, found: Sequence[tuple[int, float, float]]) -> Line:
    x, y, m = zip(*found, strict=True) if found else ((), (), ())
    return Line(name, tuple(x), tuple(y), tuple(m))


# ---- in a terminal -----------------------------------------------------------------------------------------


def spark(values: Sequence[float]) -> str:
    """Pure. A bar of eight heights for each value, from 0 to the largest."""
    most = max(values, default=0.0) or 1.0
    return "".join(_BLOCKS[min(7, int(8 * v / most))] for v in values)


def text_lines(found: Sequence[Curve]) -> list[str]:
    """Pure. Each line of each curve as a bar chart of a few characters, and its numbers; at most 80 columns."""
    out = []
    for curve in found:
        out.append(f"{curve.title} ({curve.unit})")
        for line in curve.lines:
            labels = [str(x) for x in line.x]
            numbers = [_short(y) for y in line.measured]
            models = [_short(y) for y in line.model]
            widths = [max(map(len, column)) for column in zip(labels, numbers, models, strict=True)]
            for head, words in ((line.name, labels), (spark(line.measured), numbers), ("model", models)):
                body = " ".join(f"{word:>{w}}" for word, w in zip(words, widths, strict=True))
                out.append(f"  {head:<12}{body}")
        out.append("")
    return out


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


# ---- as a picture ------------------------------------------------------------------------------------------


def svg_of(found: Sequence[Curve], *, title: str) -> str:
    """Pure. Two charts in a row under a title; log scales, since all of it spans decades."""
    n_lines = -(-len(found) // 2)
    width, height = 2 * _W, 46 + n_lines * _H
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" font-family="DejaVu Sans, Arial, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        _words(20, 26, title, size=17, bold=True),
    ]
    for i, curve in enumerate(found):
        parts.append(f'<g transform="translate({i % 2 * _W} {46 + i // 2 * _H})">')
        parts += _chart(curve)
        parts.append("</g>")
    return "\n".join((*parts, "</svg>", ""))


def _chart(curve: Curve) -> list[str]:
    xs = [x for line in curve.lines for x in line.x]
    ys = [y for line in curve.lines for y in (*line.measured, *line.model) if y > 0]
    x_axis = _Axis(min(xs), max(xs), _LEFT, _W - _RIGHT)
    y_axis = _Axis(min(ys, default=0.1) / 1.2, max(ys, default=1) * 1.2, _H - _BOTTOM, _TOP)
    parts = [_words(_LEFT, 14, curve.title, size=15, bold=True)]
    for value in y_axis.ticks():
        y = y_axis.place(value)
        parts.append(f'<line x1="{_LEFT}" x2="{_W - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_FAINT}"/>')
        parts.append(_words(_LEFT - 8, y, f"{value:g}", _GREY, anchor="end"))
    for value in x_axis.ticks():
        parts.append(_words(x_axis.place(value), _H - _BOTTOM + 16, f"{value:g}", _GREY, anchor="middle"))
    parts.append(_words((_LEFT + _W - _RIGHT) / 2, _H - 10, curve.x_name, _GREY, anchor="middle"))
    parts.append(_words(_LEFT - 8, _TOP - 16, curve.unit, _GREY, anchor="end"))
    x = float(_LEFT)
    for i, line in enumerate(curve.lines):
        colour, hollow, square = _COLOURS[i % 2], i >= 2, i % 2 == 1
        parts += (_mark(x + 6, 38, colour, hollow, square), _words(x + 18, 38, line.name))
        x += 36 + 9 * len(line.name)
        path = " ".join(f"{x_axis.place(a):.1f},{y_axis.place(b):.1f}" for a, b in zip(line.x, line.model, strict=True))
        dash = ' stroke-dasharray="6 4"' if square else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        for a, b in zip(line.x, line.measured, strict=True):
            tip = f"{line.name}, {a}: {_short(b)} {curve.unit}"
            parts.append(_mark(x_axis.place(a), y_axis.place(b), colour, hollow, square, tip))
    if len(curve.lines) < 4:  # beside four names there is no room, and the neighbours say it
        parts.append(_words(x + 4, 38, "marks measured, lines the model", _GREY))
    return parts


@dataclass(frozen=True, slots=True)
class _Axis:
    """A log scale from `low` to `high` over pixels `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        span = log10(self.high / self.low) or 1.0
        part = log10(max(value, self.low) / self.low) / span
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        """1, 2, 5, 10, ... where they are few, else powers of ten."""
        exponents = range(int(np.floor(log10(self.low))), int(np.ceil(log10(self.high))) + 1)
        for steps in ((1, 2, 5), (1, 3), (1,)):
            found = [s * 10.0**e for e in exponents for s in steps if self.low <= s * 10.0**e <= self.high]
            if len(found) <= 9:
                break
        return found


def _mark(x: float, y: float, colour: str, hollow: bool, square: bool, tip: str = "") -> str:
    fill = PAPER if hollow else colour
    look = f'fill="{fill}" stroke="{colour}" stroke-width="2"'
    title = f"<title>{escape(tip)}</title>" if tip else ""
    if square:
        return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" {look}>{title}</rect>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" {look}>{title}</circle>'


def _words(
    x: float, y: float, text: str, ink: str = INK, *, size: int = 13, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{ink}" font-size="{size}" text-anchor="{anchor}" '
        f'dominant-baseline="central"{weight}>{escape(text)}</text>'
    )
