"""Messages to text, as the template in a model file says.

Enters: messages (`role`, `content`). Leaves: the text of the whole chat with all its control pieces, to be encoded
with `add_special=False`. The template is a stranger's program: it runs in `sandbox`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import jinja2
from jinja2.exceptions import SecurityError

from polyseq.errors import TemplateError
from polyseq.tokenizer import fields
from polyseq.tokenizer.limits import MAX_CHARS
from polyseq.tokenizer.sandbox import ChatEnvironment, budget

Message = Mapping[str, object]


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """Pure. Raises TemplateError for a template that jinja2 cannot compile, naming the line."""
        self.source = source
        self._special = {"bos_token": bos_token, "eos_token": eos_token}
        environment = ChatEnvironment()
        try:
            self._template = environment.from_string(environment.counted(source))
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"the chat template is broken in line {error.lineno}: {error.message}") from error
        except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError, MemoryError) as error:
            raise TemplateError(f"the chat template cannot be compiled: {error}") from error

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> Self | None:
        """Pure. The file's `tokenizer.chat_template`, or None when it has none.

        Raises TemplateError for a broken template, InvalidModelFile for metadata of a wrong type.
        """
        source = fields.text(metadata, "tokenizer.chat_template")
        if source is None:
            return None
        return cls(source, bos_token=_piece(metadata, "bos"), eos_token=_piece(metadata, "eos"))

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> str:
        """Pure. The chat as text; with `add_generation_prompt` it ends where the assistant is to speak.

        Raises TemplateError when the template refuses the messages, fails, or does what the sandbox forbids.
        """
        parts: list[str] = []
        n_chars = 0
        try:
            for part in self._template.generate(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special,
                **budget(),
            ):
                n_chars += len(part)
                if n_chars > MAX_CHARS:
                    raise TemplateError(f"the chat template renders more than {MAX_CHARS} characters")
                parts.append(part)
        except SecurityError as error:
            raise TemplateError(f"the chat template does what it may not: {error}") from error
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template refused the messages: {error}") from error
        except TemplateError:
            raise
        # A template is a program: it can fail in any way a program can.
        except Exception as error:
            raise TemplateError(f"the chat template failed: {type(error).__name__}: {error}") from error
        return "".join(parts)


def _piece(metadata: Mapping[str, object], name: str) -> str:
    """Pure. The text of a special piece, or "" when the file has none."""
    if "tokenizer.ggml.tokens" not in metadata:
        return ""
    pieces = fields.texts(metadata, "tokenizer.ggml.tokens")
    token = fields.token_id(metadata, f"tokenizer.ggml.{name}_token_id", len(pieces))
    return "" if token is None else pieces[token]
