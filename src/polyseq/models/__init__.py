"""One file per architecture, named after GGUF's `general.architecture`: builds graphs from ops."""

from polyseq.models.architecture import Architecture, Hparams
from polyseq.models.registry import KNOWN, architecture

__all__ = ["KNOWN", "Architecture", "Hparams", "architecture"]
