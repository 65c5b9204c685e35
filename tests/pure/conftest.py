"""What stands above the backends is tested on the reference: exact to float32 rounding, with nothing to compile.

Tests of another backend name it. Programs that a test starts are told by the same variable.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from busy import busy_process_per_core


@pytest.fixture(autouse=True)
def _on_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYSEQ_BACKEND", "reference")


@pytest.fixture(params=["reference", "cpu"])
def on_each_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, _on_the_reference: None) -> None:
    """The test runs once per backend, on the one that a context takes by itself; see `on_backend.exact`."""
    monkeypatch.setenv("POLYSEQ_BACKEND", request.param)


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user is a number that no list of users names, as in containers."""

    def nobody(_: int) -> None:
        raise KeyError("no such user")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)


@pytest.fixture
def busy_cores() -> Iterator[None]:
    """A competing process on each core."""
    with busy_process_per_core():
        yield
