"""The command line on SmolLM2-135M, as a user types it: real processes, real weights."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.model

MAIN = [sys.executable, "-c", "from polyseq.cli import main; main()"]


def polyseq(*args: str) -> tuple[str, str]:
    done = subprocess.run([*MAIN, *args], capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module", autouse=True)
def fetched() -> str:
    stdout, _ = polyseq("pull", "smollm2-135m")
    assert stdout.endswith("SmolLM2-135M-Instruct.Q4_1.gguf\n")
    return stdout.strip()


def test_two_questions_are_answered_at_once() -> None:
    questions = ("What is the capital of France?", "Name a colour.")
    args = [arg for q in questions for arg in ("-p", q)]
    system = ("--chat", "--system", "You are a helpful assistant. Answer in one short sentence.")
    stdout, _ = polyseq("generate", "smollm2-135m", *args, *system, "--temp", "0", "-n", "24", "--json", "--show-cut")
    found = json.loads(stdout)
    assert "Paris" in found["answers"][0]["text"]
    assert found["answers"][0]["reason"] == "stop"
    assert found["stats"]["n_prompt_rows"] < found["stats"]["n_prompt_tokens"]
    assert found["cut"]["rows"][0]["seq_ids"] == [0, 1]
    assert found["stats"]["plan_hits"] > found["stats"]["plan_misses"]


def test_text_goes_on_from_a_raw_prompt() -> None:
    stdout, stderr = polyseq("generate", "smollm2-135m", "-p", "1, 2, 3, 4, 5,", "--temp", "0", "-n", "6")
    assert stdout.startswith(" 6, 7")
    assert "tokens/s" in stderr


def test_inspect_knows_the_file(fetched: str) -> None:
    found = json.loads(polyseq("inspect", "smollm2-135m", "--n-ctx", "4096", "--n-seq-max", "8", "--json")[0])
    assert found["path"].endswith("SmolLM2-135M-Instruct.Q4_1.gguf")
    assert found["architecture"] == "llama"
    assert 134_000_000 < found["n_params"] < 135_000_000
    assert {t["qtype"] for t in found["types"]} >= {"Q4_1", "F32"}
    assert sum(t["n_bytes"] for t in found["types"]) < found["n_bytes"] == 98_362_432
    assert found["hparams"]["n_head_kv"] == 3 and found["hparams"]["n_layer"] == 30
    assert found["memory"]["kv_bytes_per_cell"] == 30 * 3 * (64 + 64) * 2  # bf16
    assert found["memory"]["kv_bytes"] == 4096 * found["memory"]["kv_bytes_per_cell"]
    assert found["chat_template"] is True
