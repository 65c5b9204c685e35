"""Text that arrives token by token.

Enters: token ids, one at a time. Leaves: text as soon as its characters are complete; half a character waits for
its other bytes. All pushes and the flush together give what `Tokenizer.decode` gives for all ids at once.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable


class TextStream:
    """Made by `Tokenizer.stream`; one per sequence."""

    def __init__(self, bytes_of: Callable[[int], bytes], *, strip_blank: bool) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_blank = strip_blank

    def push(self, token: int) -> str:
        """Changes the stream. The text that this token completes; raises TokenizerError for a bad id."""
        return self._emit(self._bytes_of(token), final=False)

    def flush(self) -> str:
        """Changes the stream. What is left: U+FFFD for a character that stayed half. The stream starts anew."""
        text = self._emit(b"", final=True)
        self._decoder.reset()
        return text

    def _emit(self, data: bytes, *, final: bool) -> str:
        text = self._decoder.decode(data, final)
        if self._strip_blank and text:
            self._strip_blank = False
            return text.removeprefix(" ")
        return text
