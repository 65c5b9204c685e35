"""The pages of docs/ and the README say what happens: their examples are run."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/architecture.md", "docs/embeddings.md"]


@pytest.mark.model
@pytest.mark.parametrize("page", PAGES)
def test_examples_are_true(page: str, smollm2_path: Path) -> None:
    failed, tried = doctest.testfile(str(ROOT / page), module_relative=False)
    assert tried and not failed
