"""Writes the embedding model as GGUF, for llama.cpp, and names its folder beside it, for the other peers.

python bench/peers/embed_gguf.py MODEL FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from polyseq import Model

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from bert_gguf import write_bert_gguf


def main() -> None:
    source, folder = Model.load(sys.argv[1]).path, Path(sys.argv[2])
    assert source is not None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model").unlink(missing_ok=True)
    (folder / "model").symlink_to(source)
    write_bert_gguf(source, folder / "f32.gguf")


if __name__ == "__main__":
    main()
