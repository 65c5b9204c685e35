"""A scene as a PNG file, drawn by Pillow where it is installed.

Enters: a `Scene` and a path. Leaves: the file, at twice the scene's size so that it is sharp.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from polyseq.errors import CapabilityError
from polyseq.explain.palette import PAPER
from polyseq.explain.scene import Scene

_ZOOM = 2
_ANCHORS = {"start": "lm", "middle": "mm", "end": "rm"}


def write_png(scene: Scene, path: Path) -> None:
    """Changes the file system. Raises `CapabilityError` without Pillow."""
    pillow = _pillow()
    image = pillow["Image"].new("RGB", (scene.width * _ZOOM, scene.height * _ZOOM), PAPER)
    draw = pillow["ImageDraw"].Draw(image)
    for box in scene.boxes:
        x, y, w, h = (_ZOOM * v for v in (box.x, box.y, box.w, box.h))
        draw.rectangle((x, y, x + w - 1, y + h - 1), fill=box.fill)
    fonts: dict[int, Any] = {}
    for words in scene.words:
        if words.size not in fonts:
            fonts[words.size] = pillow["ImageFont"].load_default(_ZOOM * words.size)
        draw.text(
            (_ZOOM * words.x, _ZOOM * words.y),
            words.text,
            fill=words.ink,
            font=fonts[words.size],
            anchor=_ANCHORS[words.anchor],
            stroke_width=_ZOOM / 4 if words.bold else 0,
            stroke_fill=words.ink,
        )
    image.save(path, format="PNG")


def _pillow() -> dict[str, Any]:
    """Pillow's modules by name; loaded only when a PNG is asked for."""
    try:
        return {name: import_module(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont")}
    except ImportError:
        raise CapabilityError("--png needs Pillow 11.2 or newer: pip install 'polyseq[plots]'") from None
