"""A scene as SVG text: plain shapes, no scripts, no fonts to fetch.

Enters: a `Scene`. Leaves: one `<svg>` element that stands alone or inside a page.
"""

from __future__ import annotations

from html import escape

from polyseq.explain.palette import PAPER
from polyseq.explain.scene import Box, Scene, Words


def svg(scene: Scene) -> str:
    """Pure."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {scene.width} {scene.height}" '
        f'width="{scene.width}" height="{scene.height}" role="img" font-family="DejaVu Sans, Arial, sans-serif">'
    )
    paper = f'<rect width="{scene.width}" height="{scene.height}" fill="{PAPER}"/>'
    return "\n".join((head, paper, *map(_box, scene.boxes), *map(_words, scene.words), "</svg>", ""))


def _box(box: Box) -> str:
    size = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.w:.2f}" height="{box.h:.1f}" fill="{box.fill}"'
    return f"<rect {size}><title>{escape(box.tip)}</title></rect>" if box.tip else f"<rect {size}/>"


def _words(words: Words) -> str:
    bold = ' font-weight="bold"' if words.bold else ""
    return (
        f'<text x="{words.x:.1f}" y="{words.y:.1f}" fill="{words.ink}" font-size="{words.size}" '
        f'text-anchor="{words.anchor}" dominant-baseline="central"{bold}>{escape(words.text)}</text>'
    )
