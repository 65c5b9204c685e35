"""Text to tokens and back, and messages to text, as a model file's metadata says.

Enters: GGUF metadata. Leaves: `Tokenizer` (byte-level BPE and SentencePiece vocabularies), `TextStream` for text
that arrives token by token; `template.ChatTemplate`, which needs jinja2. Stands beside the pipeline and imports only
`errors`.
"""

from polyseq.tokenizer.stream import TextStream
from polyseq.tokenizer.tokenizer import Tokenizer

__all__ = ["TextStream", "Tokenizer"]
