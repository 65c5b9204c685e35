"""polyseq: language models for many sequences at once, from a flat batch to answers in the caller's order.

What is named here is imported when it is first asked for: the rooms that need only NumPy (`polyseq.batch`, `split`,
`memory`) load without what models need, and `polyseq --help` without NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polyseq.errors import NoSlot, PolyseqError

if TYPE_CHECKING:
    from polyseq.batch import Batch, FlatBatch
    from polyseq.context import Context
    from polyseq.embeddings import embed, rerank
    from polyseq.model import Model
    from polyseq.outputs import Outputs

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Context",
    "FlatBatch",
    "Model",
    "NoSlot",
    "Outputs",
    "PolyseqError",
    "__version__",
    "embed",
    "rerank",
]

_LATER = {
    "Batch": "polyseq.batch",
    "Context": "polyseq.context",
    "FlatBatch": "polyseq.batch",
    "Model": "polyseq.model",
    "Outputs": "polyseq.outputs",
    "embed": "polyseq.embeddings",
    "rerank": "polyseq.embeddings",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
