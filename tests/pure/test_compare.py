"""`bench/compare.py` keeps what was measured: a run that ends early reports the rounds that are complete."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

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
