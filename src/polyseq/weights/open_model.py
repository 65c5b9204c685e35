"""A model's place on disk opened as what it is: a GGUF file or a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from polyseq.weights.gguf import GgufFile
from polyseq.weights.hf_folder import HfFolder


def open_model(path: Path) -> GgufFile | HfFolder:
    """Pure. Metadata and tensors. Raises InvalidModelFile, UnsupportedModel."""
    return HfFolder.open(path) if path.is_dir() else GgufFile.open(path)
