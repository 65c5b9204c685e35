"""From what was typed to token columns.

Enters: `-p` texts, a file with one prompt per line, perhaps a system text. Leaves: prompts as text and as
tokens, raw or through the model's chat template.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import typer
from numpy.typing import NDArray

from polyseq.cli.files import read_text
from polyseq.errors import TemplateError
from polyseq.model import Model


def read_prompts(texts: Sequence[str], file: Path | None) -> list[str]:
    """Reads the file (`-` = stdin); lines without text are skipped. Raises typer.BadParameter."""
    prompts = list(texts)
    if file is not None:
        prompts += [line for line in read_text(file).splitlines() if line.strip()]
    if not prompts:
        found = f"{file} holds no line of text" if file is not None else "no prompt was given"
        raise typer.BadParameter(f"{found}; use -p TEXT (once or more) or --file FILE with one prompt per line")
    return prompts


def encode_prompts(model: Model, prompts: Sequence[str], *, chat: bool, system: str | None) -> list[NDArray[np.int32]]:
    """Pure. One token column [n_prompt] i32 per prompt.

    Raw text gets the file's BOS if it asks for one; a chat template writes its own.
    Raises TemplateError where the file has no template or it refuses, and what `Model.tokenizer` raises.
    """
    if not chat:
        return [model.tokenizer.encode(text) for text in prompts]
    template = model.chat_template
    if template is None:
        raise TemplateError(f"{model.name} has no chat template; leave out --chat")
    first = [] if system is None else [{"role": "system", "content": system}]
    rendered = [template.render([*first, {"role": "user", "content": text}]) for text in prompts]
    return [model.tokenizer.encode(text, add_special=False) for text in rendered]
