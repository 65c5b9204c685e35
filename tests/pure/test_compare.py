"""`bench/compare.py` keeps what was measured: a run that ends early reports the rounds that are complete."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"

# An engine: its n-th turn gives n tokens/s. `stop`: of which turn it does something else.
ENGINE = """
import json, sys, time
from pathlib import Path

count, stop, act = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
n = len(count.read_text()) + 1 if count.exists() else 1
count.write_text("x" * n)
if n == stop:
    exec(act)
print("noise")
print(json.dumps({"rates": {"decode_1": n}, "first": {"decode_1": [1, 2]}}))
"""

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import compare

command = [sys.executable, "-c", *sys.argv[3:]]
started = {"engines": ["polyseq", "other"], "cases": ["decode_1"], "threads": 2}
with open(sys.argv[2], "w") as log:
    print(compare.take_turns(started, {"polyseq": command}, {"other": [*command, "--cases"]}, 3, log))
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def turns(log: Path, stop: int, act: str) -> subprocess.Popen[str]:
    """Three rounds of two engines, under way; turns are counted over both."""
    engine = [ENGINE, str(log.parent / "count"), str(stop), act]
    command = [sys.executable, "-c", PROGRAM, str(BENCH), str(log), *engine]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def reported(log: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / "compare.py"), "--from", str(log), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_whole_run_is_reported_from_its_log(log: Path) -> None:
    out, _ = turns(log, 0, "").communicate(timeout=120)
    assert out == "\n"
    found = json.loads(reported(log, "--json").stdout)
    assert found["raw"] == {"polyseq": {"decode_1": 3}, "other": {"decode_1": 4}}  # medians of 1, 3, 5 and of 2, 4, 6
    assert found["ratios"] == {"decode_1": 0.75} and found["agree"] == {"polyseq": 1, "other": 1}
    svg = log.parent / "a.svg"
    assert "median of 3" in reported(log, "--svg", str(svg)).stdout and "<svg" in svg.read_text()


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "fails"])
def test_what_ends_a_run_early_leaves_the_complete_rounds(log: Path, how: str) -> None:
    process = turns(log, 6, "sys.exit('no licence')" if how == "fails" else "time.sleep(100)")  # the other's third
    if how != "fails":
        count, ends = log.parent / "count", time.monotonic() + 60
        while not count.exists() or len(count.read_text()) < 6:
            assert time.monotonic() < ends
            time.sleep(0.05)
        process.send_signal(getattr(signal, how))
    out, _ = process.communicate(timeout=60)
    assert ("no licence" if how == "fails" else "interrupted") in out
    lines = log.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + 5
    done = reported(log, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["raw"] == {"polyseq": {"decode_1": 2}, "other": {"decode_1": 3}}

    log.write_text("".join(lines[:5])[:-9])  # the machine fell over in the middle of a line
    assert "median of 1" in reported(log).stdout
    log.write_text(lines[0])
    done = reported(log)
    assert done.returncode == 1 and "no round is complete" in done.stderr and done.stdout == ""


# ---- commands of others --------------------------------------------------------------------------------

CASES = ["decode_1", "decode_8", "decode_32", "prefill_128", "prefill_512", "mixed", "unified_32", "rss_32"]


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(BENCH), str(BENCH / "peers"), *sys.path])
    return import_module("compare")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "cannot be started"),
        ("pass", "printed no result"),
        ("print('hello')", "its last line: ['hello']"),
        ("import sys; sys.stdout.buffer.write(bytes([255, 254]))", "printed no result"),
        ("print('[1]')", "it is no object"),
        ("print('{\"rates\": 3}')", "rates and rss_mb are not numbers above 0"),
        ('print(\'{"rates": {"mixed": "fast"}}\')', "rates and rss_mb are not numbers above 0"),
        ('print(\'{"rates": {"mixed": -1}}\')', "rates and rss_mb are not numbers above 0"),
        ('print(\'{"rates": {"mixed": NaN}}\')', "rates and rss_mb are not numbers above 0"),
        ('print(\'{"rates": {"mixed": true}}\')', "rates and rss_mb are not numbers above 0"),
        ('print(\'{"rss_mb": "much"}\')', "rates and rss_mb are not numbers above 0"),
        ('print(\'{"first": {"mixed": 3}}\')', "first is no lists of tokens by case"),
        ("raise SystemExit('no licence')", "no licence"),
    ],
)
def test_a_command_that_prints_no_result_ends_the_run_with_a_reason(compare: Any, source: str, says: str) -> None:
    with pytest.raises(compare.EngineFailed, match=re.escape(says)):
        compare.run([sys.executable, "-c", source] if source else ["/no/such"])


def test_the_last_line_is_the_result(compare: Any) -> None:
    result = {"rates": {"mixed": 3}, "rss_mb": 7, "first": {"mixed": [1]}}
    assert compare.run([sys.executable, "-c", f"print('noise'); print({json.dumps(json.dumps(result))})"]) == result


@pytest.mark.parametrize("given", [["fast"], ["=ls"], ["a="], ["polyseq=ls"], ["a=ls", "a=ls"]])
def test_a_peer_needs_a_name_of_its_own_and_a_command(compare: Any, given: list[str]) -> None:
    with pytest.raises(SystemExit, match="NAME=COMMAND is wanted"):
        compare.further(given, {"polyseq": []})
    assert compare.further(["a=ls -l", "b=x='1 2'"], {"polyseq": []}) == {"a": ["ls", "-l"], "b": ["x=1 2"]}


def test_a_peer_that_is_not_there_is_named(compare: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--only: llama is not there; there are: "):
        compare.commands(tmp_path / "model.gguf", tmp_path / "text.json", 2, "llama")


def test_every_column_has_a_ratio_to_its_best_peer(log: Path) -> None:
    """Also where a peer has no such mode and says no tokens; the report is JSON that any reader takes."""

    def result(rate: float, cases: list[str], rss: float | None) -> dict[str, object]:
        return {"rates": {case: rate for case in cases if case != "rss_32"}, "first": {}, "rss_mb": rss}

    results = {"polyseq": result(6, CASES, 200), "a": result(2, CASES, 400), "b": result(3, CASES[:6], None)}
    started = {"engines": list(results), "cases": CASES, "threads": 2}
    turns = [{"engine": name, "result": found} for name, found in results.items()]
    log.write_text("".join(json.dumps(line) + "\n" for line in [started, *turns]))
    svg = log.parent / "a.svg"
    done = reported(log, "--json", "--svg", str(svg))
    found = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["ratios"] == {**dict.fromkeys(CASES[:6], 2.0), "unified_32": 3.0, "rss_32": 2.0}
    assert set(found["raw"]) == set(results) and all(set(row) == set(CASES) for row in found["raw"].values())
    assert found["agree"] == dict.fromkeys(results)
    assert all(f">{case}<" in svg.read_text() for case in CASES)
    assert "-" in reported(log).stdout

    log.write_text("".join(json.dumps(line) + "\n" for line in [{**started, "engines": ["polyseq"]}, turns[0]]))
    alone = reported(log, "--json", "--svg", str(svg))
    assert alone.returncode == 0 and json.loads(alone.stdout)["ratios"] == {}


def test_the_cases_by_default_are_all_columns(compare: Any) -> None:
    assert list(compare.CASES) == CASES
