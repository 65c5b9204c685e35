"""The cpu backend on SmolLM2 against float32: how far rounding of rows and cells takes it, and what changes no bit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from polyseq.context import Context
from polyseq.model import Model

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
N_ANSWER = 32
STARTS = (
    "The capital of France is", "Water is wet, fire is hot, and ice is", "2 + 2 =", "Once upon a time there was a",
    "The largest planet of the solar system is", "def fibonacci(n):", "My favourite food is", "In 1969 the first",
    "Photosynthesis is the process by which", "The opposite of hot is", "A prime number is", "To make tea, first",
    "The Roman Empire fell because", "Dear Sir or Madam,", "Electrons have a", "She opened the door and",
    "The three primary colours are", "Rain falls when", "An algorithm is", "Yesterday I went to the",
)  # fmt: skip

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Model:
    return Model.load(smollm2_path)


def decode(ctx: Context, columns: Sequence[I32], *, pos: int | None = None, output: str = "all") -> F32:
    """Logits of all rows, or of the last row of each sequence."""
    batch = ctx.batch()
    for seq, column in enumerate(columns):
        last = np.arange(len(column)) == len(column) - 1
        batch.extend(column, seq=seq, output=True if output == "all" else last)
    return ctx.decode(batch).all_logits()


@pytest.fixture(scope="module")
def texts(model: Model) -> list[I32]:
    """20 prompts, each with the 32 tokens that follow greedily."""
    prompts = [model.tokenizer.encode(start).astype(np.int32) for start in STARTS]
    ctx = Context(model, n_ctx=20 * 64, n_seq_max=20, backend="cpu")
    answers = [decode(ctx, prompts, output="last").argmax(axis=1)]
    for _ in range(N_ANSWER - 1):
        answers.append(decode(ctx, list(answers[-1].astype(np.int32)[:, None])).argmax(axis=1))
    return [np.concatenate((p, a)).astype(np.int32) for p, a in zip(prompts, np.array(answers).T, strict=True)]


@pytest.fixture(scope="module")
def wanted(model: Model, texts: list[I32]) -> F32:
    """Float32 log-probabilities of the rows that say what follows a prompt and its answer's tokens."""
    return followers(
        log_softmax(decode(Context(model, n_ctx=20 * 64, n_seq_max=20, backend="reference"), texts)), texts
    )


def followers(rows: F32, texts: list[I32]) -> F32:
    """Pure. The last 32 rows of every text."""
    ends = np.cumsum([len(text) for text in texts])
    return np.concatenate([rows[end - N_ANSWER : end] for end in ends])


def log_softmax(x: F32) -> F32:
    shifted = x - x.max(axis=-1, keepdims=True)
    out: F32 = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return out


@pytest.mark.parametrize(("kv_type", "unified"), [("bf16", False), ("bf16", True), ("int8", False)])
def test_near_float32(model: Model, texts: list[I32], wanted: F32, kv_type: str, unified: bool) -> None:
    ctx = Context(model, n_ctx=20 * 64, n_seq_max=20, backend="cpu", kv_type=kv_type, unified=unified)
    found = followers(log_softmax(decode(ctx, texts)), texts)
    near(wanted, found, f"{kv_type}, unified {unified}", most=0.004 if kv_type == "bf16" else 0.005)


def near(wanted: F32, found: F32, name: str, *, most: float) -> None:
    """Asserts the mean KL divergence per row, and that first choices are the same."""
    kl = (np.exp(wanted) * (wanted - found)).sum(axis=-1)
    top_1 = (wanted.argmax(axis=-1) == found.argmax(axis=-1)).mean()
    print(f"{name}: mean KL {kl.mean():.5f}, top-1 {top_1:.4f} over {len(kl)} rows")
    assert kl.mean() <= most
    assert top_1 >= 0.94


def test_near_float32_where_cells_lie_in_another_order(model: Model, texts: list[I32], wanted: F32) -> None:
    """Sequences that grew token by token in turn in one cache, after others that began alike and have gone."""
    ctx = Context(model, n_ctx=40 * 64, n_seq_max=40, backend="cpu", unified=True)
    starts = [text[:-N_ANSWER] for text in texts]
    decode(ctx, [text for start in starts for text in (start, start)], output="last")
    for seq in range(0, 40, 2):
        ctx.memory.rm(seq)
        ctx.memory.cp(seq + 1, seq)
        ctx.memory.rm(seq + 1)
    rows, batch = [], ctx.batch()
    for i in range(-N_ANSWER, 0):
        batch.clear()
        batch.extend(np.array([text[i] for text in texts], np.int32), seq=np.arange(0, 40, 2), output=True)
        rows.append(ctx.decode(batch).all_logits())
    found = log_softmax(np.stack(rows, axis=1).reshape(wanted.shape))
    near(wanted, found, "token by token", most=0.004)


def test_company_threads_and_cuts_change_no_bit(model: Model, texts: list[I32]) -> None:
    columns = texts[:5]
    together = decode(Context(model, n_ctx=5 * 64, n_seq_max=5, backend="cpu"), columns, output="last")
    cut = Context(model, n_ctx=5 * 64, n_seq_max=5, backend="cpu", n_threads=3, n_ubatch=13)
    assert np.array_equal(decode(cut, columns, output="last"), together)
    for i, column in enumerate(columns):
        alone = Context(model, n_ctx=64, backend="cpu", n_threads=1)
        assert np.array_equal(decode(alone, [column], output="last")[0], together[i])


def test_warmup_leaves_nothing_to_compile(smollm2_path: Path, tmp_path: Path) -> None:
    env = {**os.environ, "POLYSEQ_CACHE": str(tmp_path)}

    def warm_up() -> str:
        arguments = ["polyseq", "warmup", str(smollm2_path), "--backend", "cpu"]
        code = f"import sys; sys.argv = {arguments!r}; from polyseq.cli import main; main()"
        return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout

    assert "kernels compiled and kept" in warm_up()
    assert "nothing to compile" in warm_up()
    assert list((tmp_path / "kernels").iterdir())


RESIDENT = """
import re, sys
import numpy as np
from polyseq import Batch, Context, Model
model = Model.load(sys.argv[1])
ctx = Context(model, n_ctx=64, backend="cpu")
batch = Batch()
batch.extend([1, 2, 3], seq=0)
ctx.decode(batch)
maps = open("/proc/self/smaps").read()
of_file = re.findall(re.escape(sys.argv[1]) + r"\\n(?:.*\\n)*?Rss:\\s+(\\d+) kB", maps)
print(sum(map(int, of_file)) * 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not say what is in memory")
def test_the_file_s_pages_are_let_go_once_packed(smollm2_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", RESIDENT, str(smollm2_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert 0 < int(found.stdout) < 0.05 * smollm2_path.stat().st_size
