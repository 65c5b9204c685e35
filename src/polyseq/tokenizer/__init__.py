"""Text to tokens and back, and messages to text, as a model file's metadata says.

Enters: GGUF metadata. Leaves: `Tokenizer` (byte-level BPE and SentencePiece vocabularies), `TextStream` for text
that arrives token by token, and `ChatTemplate`. Stands beside the pipeline and imports only `errors`.
"""

from polyseq.tokenizer.stream import TextStream
from polyseq.tokenizer.template import ChatTemplate
from polyseq.tokenizer.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "TextStream", "Tokenizer"]
