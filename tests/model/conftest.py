"""The real weights, fetched once into the cache directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyseq.weights.sources import resolve


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return resolve("smollm2-135m", allow_fetch=True)
