"""Options of the whole suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--n-histories", type=int, default=100, help="random histories per kind of memory (default 100)")
    parser.addoption("--n-steps", type=int, default=30, help="operations in each of them (default 30)")
    parser.addoption("--n-stress-steps", type=int, default=300, help="steps beside busy processes (default 300)")
    parser.addoption("--n-soak-cycles", type=int, default=100, help="requests that come and go (at least; default 100)")
