"""`generate --trace`, `trace` and `plan --from-trace` on a tiny random model: what they write, say and refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from polyseq.cli.generate import generate
from polyseq.cli.plan import plan
from polyseq.cli.trace import trace
from tiny_gguf import write_tiny_gguf

APP = typer.Typer()
for command in (generate, plan, trace):
    APP.command()(command)


def run(*args: object, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(APP, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.stderr or result.stdout
    return result.stdout, result.stderr


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", with_eos=False)


@pytest.fixture(scope="module")
def generated(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    prompts = ("-p", "one two three", "-p", "one two four, and more", "-p", "x")
    out, _ = run("generate", tiny, *prompts, "-n", 7, "--seed", 1, "--n-ubatch", 8, "--trace", path, "--json")
    return path, json.loads(out)


def test_the_summary_says_what_generate_says(generated: tuple[Path, dict[str, Any]]) -> None:
    path, told = generated
    found = json.loads(run("trace", path, "--json")[0])
    stats = told["stats"]
    assert found["n_calls"] == {"ok": stats["n_decode"]}  # what warmed it up is not in it
    assert found["n_ubatches"] == stats["n_ubatches"]
    assert found["tokens_in"] == found["tokens_out"] == stats["n_prompt_rows"] + stats["n_gen_rows"]
    assert found["decode_tokens"] == stats["n_gen_rows"]
    assert sum(found["steps_s"].values()) == pytest.approx(found["calls_s"])
    text, _ = run("trace", path)
    for words in ("tokens    ", f"{found['tokens_in']} in, {found['tokens_out']} out", "prefill", "decode", "compute",
                  "reused", "longest between two outputs"):  # fmt: skip
        assert words in text


def test_files_are_written_where_asked(generated: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    page, export = tmp_path / "p.html", tmp_path / "p.json"
    run("trace", generated[0], "--html", page, "--perfetto", export)
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert json.loads(export.read_text())["displayTimeUnit"] == "ms"
    _, err = run("trace", generated[0], "--html", tmp_path / "no" / "p.html", code=2)
    assert "cannot be written" in err


def test_a_recorded_call_is_planned(generated: tuple[Path, dict[str, Any]]) -> None:
    path, _ = generated
    first = json.loads(run("plan", "--from-trace", path, "--json")[0])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    placed = [line for line in lines if line["event"] == "placed"]
    assert [u["rows"] for u in first["ubatches"]] == [u["rows"] for u in placed[0]["ubatches"]]
    assert [s["cells"] for s in first["slots"]] == [u["cells"] for u in placed[0]["ubatches"]]
    third = json.loads(run("plan", "--from-trace", path, "--call", placed[2]["i_call"], "--json")[0])
    assert [s["cells"] for s in third["slots"]] == [u["cells"] for u in placed[2]["ubatches"]]
    assert sum(third["settings"]["held"]) > 0
    other = json.loads(run("plan", "--from-trace", path, "--n-ubatch", 3, "--json")[0])
    assert max(u["n_tokens"] for u in other["ubatches"]) == 3
    assert "token-budget" in run("plan", "--from-trace", path, "--compare")[0]


@pytest.mark.parametrize("more", [("--lengths", "3"), ("--memory", "streams"), ("--held", "3"), ("--n-ctx", "9")])
def test_a_recorded_call_has_its_own_settings(generated: tuple[Path, dict[str, Any]], more: tuple[str, ...]) -> None:
    assert "only --n-ubatch" in run("plan", "--from-trace", generated[0], *more, code=2)[1]


def test_what_cannot_be_is_said(generated: tuple[Path, dict[str, Any]], tiny: Path, tmp_path: Path) -> None:
    assert "cannot be read" in run("trace", tmp_path / "none", code=2)[1]
    assert "cannot be read" in run("plan", "--from-trace", tmp_path / "none", code=2)[1]
    assert "no event" in run("trace", tiny, code=1)[1]
    assert "call 99 is not in the trace" in run("plan", "--from-trace", generated[0], "--call", 99, code=1)[1]
    assert "--call belongs" in run("plan", "--lengths", 3, "--call", 1, code=2)[1]
    assert "cannot be written" in run("generate", tiny, "-p", "x", "--trace", tmp_path / "no" / "t", code=2)[1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_ends_generate_with_a_sentence(tiny: Path) -> None:
    assert "/dev/full cannot be written" in run("generate", tiny, "-p", "x", "--trace", "/dev/full", code=1)[1]


def test_reading_a_trace_needs_no_model_library(generated: tuple[Path, dict[str, Any]]) -> None:
    code = (
        "import sys, typer; from polyseq.cli.trace import trace; app = typer.Typer(); app.command()(trace)\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "assert not {'numba', 'gguf', 'tokenizers', 'polyseq.model', 'polyseq.context'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(generated[0])], check=True, capture_output=True, timeout=60)
