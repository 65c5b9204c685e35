"""The replay command itself, on the recorded cases, as anyone would run it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DATA = HERE / "data"


def replay(*files: Path, expect: int = 0, backend: str = "auto") -> str:
    command = [sys.executable, str(HERE / "replay.py"), *map(str, files), "--backend", backend]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == expect, run.stdout + run.stderr
    return run.stdout


def cases(path: Path) -> int:
    return sum(1 for line in path.open() if line.strip())


def test_splits_and_scripts() -> None:
    files = [DATA / f"{name}.jsonl" for name in ("split", "kv", "kv_swa")]
    out = replay(*files)
    assert f"{sum(map(cases, files))} passed, 0 failed" in out
    rules = dict(re.findall(r"(D\d+) (\d+)", out))
    assert {"D1", "D2", "D3", "D4", "D5", "D6", "D8", "D9"} == set(rules)


def test_a_refused_call_that_purged_differs_by_rule(tmp_path: Path) -> None:
    """D7 is seen in the state: a record whose refused decode lost positions of the window cache, and only that."""
    case = next(c for c in map(json.loads, (DATA / "kv_swa.jsonl").open()) if any(op["rc"] == 1 for op in c["ops"]))
    refused = next(op for op in case["ops"] if op["rc"] == 1)
    file = tmp_path / "purged.jsonl"
    stream = refused["state"]["swa"]["streams"][0]
    first, pos, n, seqs = stream["runs"][-1]
    stream["runs"][-1] = [first + 5, pos + 5, n - 5, seqs]
    file.write_text(json.dumps(case))
    assert re.search(r"rule: .*D7 1\n1 passed", replay(file))
    stream["runs"][-1] = [first, pos + 5, n, seqs]
    file.write_text(json.dumps(case))
    assert "0 passed, 1 failed" in replay(file, expect=1)


@pytest.mark.model
@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", ["logits_smollm2.jsonl", "logits_gemma3.jsonl"])
def test_logits(name: str, backend: str) -> None:
    out = replay(DATA / name, backend=backend)
    assert f"{cases(DATA / name)} passed, 0 failed" in out


def test_a_wrong_record_is_noticed(tmp_path: Path) -> None:
    """The replay can fail: each field of a ubatch and each part of a state, changed, is a difference."""
    split = next(c for c in map(json.loads, (DATA / "split.jsonl").open()) if c["result"].get("ubatches"))
    wrong = []
    for name, value in split["result"]["ubatches"][0].items():
        ubatch = {**split["result"]["ubatches"][0], name: [*value[::-1], 7] if isinstance(value, list) else value + 1}
        wrong.append({**split, "result": {**split["result"], "ubatches": [ubatch, *split["result"]["ubatches"][1:]]}})
    kv = next(c for c in map(json.loads, (DATA / "kv.jsonl").open()) if c["ops"][0]["op"] == "decode")
    for name in ("head", "used", "cells"):
        op = json.loads(json.dumps(kv["ops"][0]))
        value = op["state"]["streams"][0][name]
        op["state"]["streams"][0][name] = value[1:] if isinstance(value, list) else value + 1
        wrong.append({**kv, "ops": [op]})
    file = tmp_path / "wrong.jsonl"
    file.write_text("\n".join(map(json.dumps, wrong)))
    out = replay(file, expect=1)
    assert f"0 passed, {len(wrong)} failed" in out
