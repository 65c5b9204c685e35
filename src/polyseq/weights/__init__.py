"""Model files turned into named tensors and metadata.

Enters: a path, a known name or a hub id. Leaves: `Weights` (tensors by GGUF name, as stored bytes or
float32) and GGUF metadata. Stands beside the pipeline and imports only `errors`; each backend packs weights
its own way. `hf_folder` is loaded for the models that are folders.
"""

from polyseq.weights.arrays import ArrayWeights
from polyseq.weights.gguf import GgufFile
from polyseq.weights.open_model import open_model
from polyseq.weights.tensor import TensorInfo
from polyseq.weights.weights import Weights

__all__ = ["ArrayWeights", "GgufFile", "TensorInfo", "Weights", "open_model"]
