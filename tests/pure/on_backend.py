"""Contexts on the backend under test, as exact as it can be: the same bounds hold for each of them."""

from __future__ import annotations

import os
from typing import Any

from polyseq import Context, Model


def backend_under_test() -> str:
    return os.environ["POLYSEQ_BACKEND"]


def exact(model: Model, **sizes: Any) -> Context:
    """A context that rounds no K and no V."""
    backend = backend_under_test()
    return Context(model, **{"backend": backend, "kv_type": "f32" if backend == "cpu" else None, **sizes})
