"""`polyseq verify` on SmolLM2-135M: all ways to run the same prompts agree, up to rounding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from polyseq.cli.verify import verify

pytestmark = pytest.mark.model


def test_smollm2_shows_rounding_only(smollm2_path: Path) -> None:
    app = typer.Typer()
    app.command()(verify)
    prompts = ["-p", "2 + 2 =", "-p", "Water is wet and fire is"]
    result = CliRunner().invoke(app, [str(smollm2_path), *prompts, "--backend", "reference", "--json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["verdict"] == "rounding" and found["n_rows"] == 11
    assert 0 < max(r["relative"] for r in found["results"]) < 2e-4
    assert all(r["n_argmax_changed"] == 0 and r["kl"] < 1e-8 for r in found["results"])
