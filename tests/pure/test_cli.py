"""The command line on a tiny random model: what goes to stdout, what to stderr, and every exit code."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from polyseq import __version__
from polyseq.backends.cpu.plan.weights import PackedWeights
from polyseq.cli.app import app
from polyseq.cli.cut import cut_of
from polyseq.cli.job import needed_cells
from polyseq.cli.text import end_of_line, human_bytes, human_count, one_line, plural, printable
from polyseq.context import Context
from polyseq.model import Model
from tiny_gguf import N_CTX_TRAIN, N_VOCAB, write_tiny_gguf

MAIN = [sys.executable, "-c", "from polyseq.cli import main; main()"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "endless.gguf", with_eos=False)


def run(*args: object, code: int = 0, stdin: str | None = None) -> tuple[str, str]:
    result = CliRunner().invoke(app, [str(a) for a in args], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.stderr or result.stdout
    return result.stdout, result.stderr


def run_json(*args: object, code: int = 0) -> dict:  # type: ignore[type-arg]
    stdout, _ = run(*args, "--json", code=code)
    return json.loads(stdout)  # type: ignore[no-any-return]


# ---- generate ------------------------------------------------------------------------------------------


def test_one_prompt_streams_its_answer_and_nothing_else(endless: Path) -> None:
    stdout, stderr = run("generate", endless, "-p", "hello", "-n", 12, "--seed", 1)
    found = run_json("generate", endless, "-p", "hello", "-n", 12, "--seed", 1)
    assert stdout == found["answers"][0]["text"] + "\n"
    for words in ("prompt ", "tokens/s", "generation  12 tokens", "decode calls", "plans reused"):
        assert words in stderr


def test_one_answer_that_nobody_watches_loads_nothing_that_draws(endless: Path) -> None:
    code = (
        f"import sys\nfrom polyseq.cli import main\nsys.argv = ['polyseq', 'generate', {str(endless)!r}, "
        "'-p', 'a', '-n', '2', '--temp', '0']\ntry:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print([name for name in ('rich', 'numpy.random', 'polyseq.explain.compare') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n") and "generation  2 tokens" in done.stderr


def test_several_prompts_come_whole_with_their_number(endless: Path) -> None:
    stdout, _ = run("generate", endless, "-p", "one", "-p", "two\nlines", "-n", 3, "--temp", 0)
    texts = [a["text"] for a in run_json(
        "generate", endless, "-p", "one", "-p", "two\nlines", "-n", 3, "--temp", 0)["answers"]]  # fmt: skip
    for head, text in zip(("[1/2] one", "[2/2] two lines"), texts, strict=True):
        assert f"{head}\n{text.strip()}\n(length, 3 tokens)\n" in stdout


def test_json_tells_answers_settings_and_cost(endless: Path) -> None:
    prompts = ("-p", "abc", "-p", "the other")
    found = run_json("generate", endless, *prompts, "-n", 5, "--seed", 9, "--top-k", 7, "--n-ubatch", 8)
    assert [a["prompt"] for a in found["answers"]] == ["abc", "the other"]
    assert [a["n_prompt"] for a in found["answers"]] == [3, 7]  # "th" is one token
    for answer in found["answers"]:
        assert answer["n_tokens"] == 5 and answer["reason"] == "length" and answer["seed"] == 9
    settings = found["settings"]
    assert settings["n_seq_max"] == 2 and settings["n_ubatch"] == 8 and settings["unified"] is True
    assert settings["n_ctx"] == 3 + 7 + 2 * 5
    assert settings["sampling"]["top_k"] == 7 and settings["max_tokens"] == 5
    stats = found["stats"]
    assert stats["n_prompt_rows"] == 10 and stats["n_gen_rows"] == 8 and stats["n_sampled"] == 10
    assert stats["n_decode"] == 5 and stats["n_ubatches"] == 6  # 10 prompt rows make 8 + 2
    assert stats["plan_hits"] + stats["plan_misses"] == stats["n_ubatches"]
    assert stats["prompt_tokens_per_s"] > 0 and stats["gen_tokens_per_s"] > 0
    assert found["notes"] == [] and found["interrupted"] is False and "cut" not in found
    assert found["model"]["name"] == "Tiny Test" and found["model"]["path"] == str(endless)


def test_a_seed_makes_an_answer_the_same_alone_and_in_company(endless: Path) -> None:
    args = ("-n", 10, "--seed", 5, "--temp", 1.2)
    alone = run_json("generate", endless, "-p", "same", *args)["answers"][0]
    company = run_json("generate", endless, "-p", "x", "-p", "same", "-p", "same", "--streams", *args)["answers"]
    assert [a["text"] for a in company[1:]] == [alone["text"]] * 2
    assert {a["seed"] for a in company} == {5}


def test_without_a_seed_each_prompt_gets_one_that_gives_its_answer_again(endless: Path) -> None:
    answers = run_json("generate", endless, "-p", "same", "-p", "same", "-n", 10)["answers"]
    assert answers[0]["seed"] != answers[1]["seed"]
    again = run_json("generate", endless, "-p", "same", "-n", 10, "--seed", answers[1]["seed"])["answers"][0]
    assert again["text"] == answers[1]["text"]


def test_prompts_from_a_file_and_from_stdin(endless: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufefffirst\n\n  \nzweite Straße\r\n".encode())
    found = run_json("generate", endless, "--file", file, "-p", "zero", "-n", 1)
    assert [a["prompt"] for a in found["answers"]] == ["zero", "first", "zweite Straße"]
    stdout, _ = run("generate", endless, "--file", "-", "-n", 1, stdin="from stdin\n")
    assert stdout.endswith("\n")


def test_chat_uses_the_files_template(endless: Path) -> None:
    raw = run_json(
        "generate", endless, "-n", 6, "--temp", 0, "-p",
        "<|go|>system\nBe brief.<|fin|><|go|>user\nHi<|fin|><|go|>assistant\n",
    )["answers"][0]  # fmt: skip
    chat = run_json("generate", endless, "-n", 6, "--temp", 0, "-p", "Hi", "--chat", "--system", "Be brief.")
    assert chat["answers"][0]["n_prompt"] == raw["n_prompt"]
    assert chat["answers"][0]["text"] == raw["text"]
    assert chat["answers"][0]["prompt"] == "Hi" and chat["settings"]["chat"] is True


def test_show_cut_draws_the_first_batch(endless: Path) -> None:
    prompts = ("-p", "0123456789abc", "-p", "0123456789xyzw")
    _, stderr = run("generate", endless, *prompts, "-n", 2, "--show-cut", "--n-ubatch", 16)
    lines = [line.split() for line in stderr.splitlines()]
    assert ["0..1", "(shared)", "10", "·"] in lines
    assert ["0", "3", "·"] in lines
    assert ["1", "3", "1"] in lines
    assert ["rows", "16", "1"] in lines
    cut = run_json("generate", endless, *prompts, "-n", 2, "--show-cut", "--n-ubatch", 16)["cut"]
    assert cut["rows"][0] == {"seq_ids": [0, 1], "n_tokens": [10, 0]}


def test_what_was_clamped_is_said(endless: Path) -> None:
    args = ("-p", "abc", "-n", 2, "--n-ctx", 64, "--n-batch", 500)
    _, stderr = run("generate", endless, *args)
    assert "note        n_batch 500 clamped to n_ctx 64" in stderr
    assert "PolyseqWarning" not in stderr
    assert "n_batch 500 clamped to n_ctx 64" in run_json("generate", endless, *args)["notes"]


def test_more_prompts_than_sequences_are_all_answered(endless: Path) -> None:
    prompts = [arg for i in range(7) for arg in ("-p", f"prompt number {i}")]
    found = run_json("generate", endless, *prompts, "-n", 4, "--n-seq-max", 2, "--streams")
    assert [a["n_tokens"] for a in found["answers"]] == [4] * 7
    assert found["settings"]["n_seq_max"] == 2 and found["settings"]["unified"] is False


def test_a_prompt_that_cannot_run_fails_the_command_but_not_the_others(endless: Path) -> None:
    args = ("-p", "a" * 100, "-p", "fine", "-n", 3, "--n-ctx", 60)
    found = run_json("generate", endless, *args, code=1)
    assert [a["reason"] for a in found["answers"]] == ["error", "length"]
    assert "100 tokens" in found["answers"][0]["message"]
    stdout, _ = run("generate", endless, *args, code=1)
    assert "(error, 0 tokens: the prompt has 100 tokens" in stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "no prompt was given"),
        (("-p", "x", "--system", "s"), "--system needs --chat"),
        (("-p", "x", "-n", "0"), "-n 0"),
        (("-p", "x", "--temp", "-1"), "temperature -1.0 is not a finite number >= 0"),
        (("-p", "x", "--top-p", "1.5"), "top_p 1.5 is not within [0, 1]"),
        (("--file", "/no/such/file"), "/no/such/file cannot be read"),
    ],
)
def test_what_is_asked_wrongly_exits_with_2(tiny: Path, args: tuple[str, ...], words: str) -> None:
    stdout, stderr = run("generate", tiny, *args, code=2)
    assert stdout == "" and words in stderr and stderr.count("\n") == 1
    error = run_json("generate", tiny, *args, code=2)["error"]
    assert words in error["message"] and error["code"] in ("usage", "sampling")


def test_a_file_that_is_not_utf8_names_the_byte(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "latin.txt"
    file.write_bytes(b"gr\xfc\xdfe")
    _, stderr = run("generate", tiny, "--file", file, code=2)
    assert "byte 2 is 0xfc" in stderr


def test_a_model_that_is_not_there_exits_with_1(tmp_path: Path) -> None:
    stdout, stderr = run("generate", tmp_path / "none.gguf", "-p", "x", code=1)
    assert stdout == "" and stderr.startswith("polyseq: ") and "none.gguf" in stderr and stderr.count("\n") == 1
    assert run_json("generate", "no-such-model", "-p", "x", code=1)["error"]["code"] == "unknown_model"


def test_a_model_without_a_template_cannot_chat(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "raw.gguf", with_template=False)
    _, stderr = run("generate", file, "-p", "x", "--chat", code=1)
    assert "has no chat template" in stderr


def test_a_broken_file_is_one_line_and_1(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(tiny.read_bytes()[:3000])
    for command in (("generate", file, "-p", "x"), ("inspect", file)):
        stdout, stderr = run(*command, code=1)
        assert stdout == "" and stderr.count("\n") == 1 and "cut.gguf" in stderr
        assert run_json(*command, code=1)["error"]["code"] == "invalid_model_file"


# ---- processes -------------------------------------------------------------------------------------------


def spawn(args: Sequence[object]) -> subprocess.Popen[str]:
    command = [*MAIN, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")


def read_some(process: subprocess.Popen[str], n: int) -> str:
    assert process.stdout is not None
    return process.stdout.read(n)


def test_ctrl_c_keeps_what_was_said_and_exits_with_130(endless: Path) -> None:
    process = spawn(["generate", endless, "-p", "go on", "-n", -1, "--n-ctx", 200_000, "--n-seq-max", 1])
    said = read_some(process, 40)
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(said) == 40 and rest.endswith("\n")
    assert "interrupted" in stderr and "tokens/s" in stderr and "Traceback" not in stderr


def test_ctrl_c_with_json_still_prints_one_object(endless: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts"
    os.mkfifo(prompts)
    process = spawn(["generate", endless, "--file", prompts, "-n", -1, "--n-ctx", 200_000, "--json"])
    prompts.write_text("a\nb\n")  # returns when the command has begun and reads it
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    found = json.loads(stdout)
    if "error" in found:  # the machine was slow and had not begun
        assert found["error"]["code"] == "interrupted"
        return
    assert found["interrupted"] is True
    assert {a["reason"] for a in found["answers"]} == {"interrupted"}
    told = sum(a["n_tokens"] for a in found["answers"])
    # The step that was interrupted may have drawn a token for each answer without having told it.
    assert 0 < told <= found["stats"]["n_sampled"] <= told + len(found["answers"])


def test_a_reader_that_leaves_ends_the_program_quietly(endless: Path) -> None:
    process = spawn(["generate", endless, "-p", "go on", "-n", -1, "--n-ctx", 200_000, "--n-seq-max", 1])
    assert process.stdout is not None and process.stderr is not None
    read_some(process, 10)
    process.stdout.close()
    stderr = process.stderr.read()
    assert process.wait(timeout=60) == 141
    assert "Traceback" not in stderr and "Exception" not in stderr
    process.stderr.close()


def test_on_a_terminal_answers_grow_in_a_table_and_end_above_it(endless: Path) -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    args = ["generate", str(endless), "-p", "first one", "-p", "second one", "-n", "30", "--seed", "1"]
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen([*MAIN, *args], stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    shown = b""
    while chunk := read_terminal(leader):
        shown += chunk
    assert process.wait(timeout=60) == 0
    os.close(leader)
    text = shown.decode(errors="replace")
    assert "[1/2] first one" in text and "[2/2] second one" in text
    assert text.count("(length, 30 tokens)") == 2
    assert "\x1b[2K" in text  # the table was drawn over
    assert text.index("generation  60 tokens") > text.index("[2/2] second one")


def read_terminal(leader: int) -> bytes:
    try:
        return os.read(leader, 65536)
    except OSError:  # Linux says EIO where the other side has gone
        return b""


# ---- inspect, pull, version ----------------------------------------------------------------------------


def test_inspect_tells_what_is_in_the_file(tiny: Path) -> None:
    found = run_json("inspect", tiny, "--n-ctx", 64, "--n-seq-max", 4, "--tensors")
    assert found["name"] == "Tiny Test" and found["architecture"] == "llama" and found["supported"] is True
    assert found["n_bytes"] == tiny.stat().st_size
    assert found["hparams"]["n_layer"] == 2 and found["hparams"]["n_ctx_train"] == N_CTX_TRAIN
    assert found["tokenizer"]["model"] == "gpt2" and found["tokenizer"]["n_vocab"] == N_VOCAB
    assert found["chat_template"] is True
    assert found["n_tensors"] == len(found["tensors"]) == 21
    by_type = found["types"]
    assert [t["qtype"] for t in by_type] == ["F32"]
    assert by_type[0]["n_params"] == found["n_params"] == sum(int(np.prod(t["shape"])) for t in found["tensors"])
    assert by_type[0]["n_bytes"] == 4 * found["n_params"]
    assert found["metadata"]["tokenizer.ggml.tokens"]["n_items"] == N_VOCAB


@pytest.mark.filterwarnings("ignore:n_ctx 66 over 4 streams")
@pytest.mark.parametrize("mode", ["--unified", "--streams"])
@pytest.mark.parametrize("computing", [[], ["--backend", "cpu"], ["--backend", "cpu", "--kv-type", "int8"]], ids=str)
def test_the_memory_foretold_is_the_memory_taken(tiny: Path, mode: str, computing: list[str]) -> None:
    memory = run_json("inspect", tiny, "--n-ctx", 66, "--n-seq-max", 4, mode, *computing)["memory"]
    model, unified = Model.load(tiny), mode == "--unified"
    kv_type = "int8" if "int8" in computing else None
    backend = "cpu" if computing else "auto"  # which is the reference here
    ctx = Context(model, n_ctx=66, n_seq_max=4, unified=unified, backend=backend, kv_type=kv_type)
    batch = ctx.batch()
    batch.add(1, output=True)
    ctx.decode(batch)
    if computing:
        packed = next(iter(model._loaded.values())).weights
        assert isinstance(packed, PackedWeights)
        arrays = (*(p.data for p in packed._panels.values()), *packed._vectors.values())
        assert memory["weights_bytes"] == sum(a.nbytes for a in arrays)
    else:
        assert memory["kv_bytes_per_cell"] == 2 * 2 * (8 + 8) * 4  # layers, kv heads, K and V, float32
        assert memory["weights_bytes"] == 4 * model.n_params
    assert (memory["backend"], memory["kv_type"]) == (ctx.backend, ctx.options.kv_type)
    assert memory["kv_bytes"] == ctx.n_bytes_kv
    assert memory["n_ctx_seq"] == ctx.n_ctx_seq and memory["n_batch"] == ctx.n_batch
    assert memory["logits_bytes"] == 4 * N_VOCAB * 4
    assert memory["total_bytes"] == memory["kv_bytes"] + memory["weights_bytes"] + memory["logits_bytes"]


def test_inspect_reads_well(tiny: Path) -> None:
    stdout, stderr = run("inspect", tiny, "--n-batch", 9999, "--tensors")
    assert stderr == ""
    for words in ("Tiny Test", "llama", "chat template", "F32", "n_layer", "KV cache", "blk.1.ffn_down.weight"):
        assert words in stdout
    assert "n_batch 9999 clamped" in stdout


def test_inspect_describes_what_polyseq_does_not_run(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "other.gguf", architecture="mamba9")
    found = run_json("inspect", file)
    assert found["supported"] is False and "mamba9" in found["refusal"]
    assert found["memory"] is None and found["n_tensors"] == 21
    stdout, _ = run("inspect", file)
    assert "not supported" in stdout
    assert run_json("generate", file, "-p", "x", code=1)["error"]["code"] == "unsupported_model"


def test_pull_lists_what_is_known_and_refuses_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYSEQ_CACHE", str(tmp_path))
    stdout, _ = run("pull")
    assert "smollm2-135m" in stdout and "Apache-2.0" in stdout
    known = run_json("pull")["known"]
    assert {"smollm2-135m", "gemma3-270m"} <= {k["name"] for k in known}
    assert all(k["path"] is None for k in known)
    _, stderr = run("pull", "smollm3", code=1)
    assert "smollm2-135m" in stderr  # what may have been meant
    _, stderr = run("generate", "smollm2-135m", "-p", "x", "--no-fetch", code=1)
    assert "polyseq pull smollm2-135m" in stderr


def test_pull_prints_the_path_of_what_is_there(tmp_path: Path, tiny: Path) -> None:
    stdout, _ = run("pull", tiny)
    assert stdout == f"{tiny.resolve()}\n"
    assert run_json("pull", tiny) == {"name": str(tiny), "path": str(tiny.resolve()), "n_bytes": tiny.stat().st_size}


def test_version_and_help() -> None:
    assert run("--version")[0] == f"polyseq {__version__}\n"
    assert "generate" in run("--help")[0]
    run("generate", code=2)
    run("no-such-command", code=2)


# ---- small parts -----------------------------------------------------------------------------------------


def test_a_cut_counts_rows_by_sequence_set(tiny: Path) -> None:
    ctx = Context(Model.load(tiny), n_ctx=64, n_seq_max=4, n_batch=16, n_ubatch=8)
    batch = ctx.batch()
    for seq in range(4):
        batch.extend(np.arange(4), seq=seq)
    cut = cut_of(ctx.plan(batch).ubatches)
    assert cut.shapes == ((4, 2), (4, 2))
    assert cut.rows == {(seq,): (2, 2) for seq in range(4)}


def test_needed_cells() -> None:
    prompts = [np.zeros(n, np.int32) for n in (10, 30, 20)]
    assert needed_cells(prompts, 5, 3, unified=True) == 15 + 35 + 25
    assert needed_cells(prompts, 5, 2, unified=True) == 35 + 25
    assert needed_cells(prompts, 5, 2, unified=False) == 2 * 35
    assert needed_cells(prompts, None, 2, unified=False) == 0


def test_words_for_numbers_and_texts() -> None:
    assert [human_bytes(n) for n in (0, 1023, 1024, 98_362_432)] == ["0 B", "1023 B", "1.0 KiB", "93.8 MiB"]
    assert [human_count(n) for n in (999, 1000, 134_515_008)] == ["999", "1.0K", "134.5M"]
    assert [plural(1, "batch"), plural(2, "batch"), plural(0, "token")] == ["1 batch", "2 batches", "0 tokens"]
    assert one_line(" a\n  b\t c ", 10) == "a b c" and one_line("abcdef", 4) == "abc…"
    assert end_of_line("a b\nc", 10) == "a b c" and end_of_line("abcdef", 4) == "…def"
    assert printable("a\x1b[31mb\n\tc\x9b") == "a\ufffd[31mb\n\tc\ufffd"


# ---- what the parser refuses -----------------------------------------------------------------------------


@pytest.mark.parametrize("args", [["generate"], ["generate", "x", "--temp", "warm"], ["inspect", "x", "--nope"]])
def test_usage_errors_are_json_too(args: list[str]) -> None:
    done = subprocess.run([*MAIN, *args, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and not done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "usage"
    plain = subprocess.run([*MAIN, *args], capture_output=True, text=True, check=False)
    assert plain.returncode == 2 and not plain.stdout and "Error" in plain.stderr


def test_a_terminal_that_cannot_show_a_character_gets_another(endless: Path) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*MAIN, "inspect", str(endless)], capture_output=True, env=env, check=False)
    assert done.returncode == 0, done.stderr


def test_the_configuration_in_effect_is_printed_on_demand(endless: Path) -> None:
    _, stderr = run("generate", endless, "-p", "hello", "-n", 2, "--n-ctx", 64, "--n-batch", 500, "--show-config")
    lines = {line.split()[0]: line for line in stderr.splitlines() if line}
    assert "at most n_ctx 64" in lines["n_batch"] and "unified" in lines["memory"]
