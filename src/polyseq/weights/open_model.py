"""A model's place on disk opened as what it is: a GGUF file or a Hugging Face folder."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from polyseq.weights.gguf import GgufFile

if TYPE_CHECKING:
    from polyseq.weights.hf_folder import HfFolder


def open_model(path: Path) -> GgufFile | HfFolder:
    """Pure. Metadata and tensors. Raises InvalidModelFile, UnsupportedModel."""
    if not path.is_dir():
        return GgufFile.open(path)
    folder: HfFolder = import_module("polyseq.weights.hf_folder").HfFolder.open(path)
    return folder
