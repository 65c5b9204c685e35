"""`polyseq plan`: the worked examples, the drawing, files in and out, refusals, and that no model library is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polyseq.cli.app import COMMANDS, app, command

HEAVY = ["pydantic", "numba", "gguf", "tokenizers", "transformers", "torch", "jinja2", "huggingface_hub", "PIL",
         "polyseq.context", "polyseq.model", "polyseq.models", "polyseq.graph", "polyseq.backends",
         "polyseq.weights", "polyseq.trace"]  # fmt: skip


def run(*args: object, code: int = 0, stdin: str | None = None) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["plan", *map(str, args)], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.stderr or result.stdout
    return result.stdout, result.stderr


def run_json(*args: object, code: int = 0, stdin: str | None = None) -> dict[str, Any]:
    found = json.loads(run(*args, "--json", code=code, stdin=stdin)[0])
    assert isinstance(found, dict)
    return found


def shapes(found: dict[str, Any]) -> list[tuple[int, int, int]]:
    return [(u["n_tokens"], u["n_seqs"], u["n_seq_tokens"]) for u in found["ubatches"]]


# ---- the worked examples -----------------------------------------------------------------------------------


def test_four_sequences_of_five() -> None:
    streams = run_json("--lengths", "5,5,5,5", "--n-ubatch", 8, "--memory", "streams", "--strategy", "equal")
    assert shapes(streams) == [(8, 4, 2), (8, 4, 2), (4, 4, 1)]
    unified = run_json("--lengths", "5,5,5,5", "--n-ubatch", 8, "--memory", "unified", "--strategy", "simple")
    assert [u["n_tokens"] for u in unified["ubatches"]] == [8, 8, 4]
    for memory, found in (("streams", streams), ("unified", unified)):  # what each memory chooses by itself
        assert run_json("--lengths", "4x5", "--n-ubatch", 8, "--memory", memory) == found


def test_a_short_sequence_among_long_ones() -> None:
    found = run_json("--lengths", "5,5,5,1", "--n-ubatch", 8, "--memory", "streams")
    assert shapes(found) == [(4, 4, 1), (6, 3, 2), (6, 3, 2)]
    assert [u["reason"] for u in found["ubatches"]] == ["a sequence ran out", "ubatch full", "batch ended"]
    assert [u["rows"] for u in found["ubatches"]] == [[0, 5, 10, 15], [1, 2, 6, 7, 11, 12], [3, 4, 8, 9, 13, 14]]
    assert [s["streams"] for s in found["slots"]] == [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2]]
    assert found["ways"]["cell"] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0]
    assert found["ways"]["output_row"] == [-1] * 4 + [1] + [-1] * 4 + [2] + [-1] * 4 + [3, 0]
    assert found["n_ubatches"] == 3 and found["fill_percent"] == 66.7


def test_interleaved_sequences_are_laid_out_set_by_set() -> None:
    found = run_json("--lengths", "3,3,3", "--interleave", "--n-ubatch", 9, "--memory", "streams")
    (ubatch,) = found["ubatches"]
    assert ubatch["batch_idxs"] == [0, 3, 6, 1, 4, 7, 2, 5, 8]
    assert ubatch["seq_ids"] == [[0]] * 3 + [[1]] * 3 + [[2]] * 3


# ---- what is shown -----------------------------------------------------------------------------------------


def test_the_drawing_is_80_columns_wide_and_plain_without_a_terminal() -> None:
    stdout, stderr = run("--lengths", "5,5,5,1", "--n-ubatch", 8, "--memory", "streams", "--ways", "--compare")
    lines = stdout.splitlines()
    assert stderr == "" and "\x1b" not in stdout and max(map(len, lines[:13])) <= 80
    assert lines[0] == "16 tokens of 4 sequences, memory streams, cut equal, n_ubatch 8"
    words = [line.split() for line in lines]
    assert ["0", "ABBCC", "5"] in words and ["3", "A", "1"] in words
    assert ["A", "4x1", "4", "50%", "a", "sequence", "ran", "out", "0..3"] in words
    assert "fill of n_ubatch 67%" in stdout
    assert ["1..2", "0", "1..2", "B", "0..1", "0", "1..2", "-"] in words  # a run of ways
    assert ["equal", "*", "3", "4", "/", "6", "/", "6", "67%", "2", "of", "3x2,", "4x1"] in words
    assert ["token-budget", "2", "8", "/", "8", "/", "8", "100%", "5+3,", "2+5+1"] in words


def test_compare_in_json() -> None:
    found = run_json("--lengths", "5,5,5,1", "--n-ubatch", 8, "--memory", "streams", "--compare")["compare"]
    assert [c["name"] for c in found] == ["simple", "equal", "packed", "seq", "token-budget", "prefill-adder"]
    equal = found[1]
    assert equal["chosen"] and equal["n_blocks"] == 3 and equal["blocks"] == [4, 6, 6]
    assert equal["tokens_per_block"] == {"min": 4, "median": 6, "max": 6}
    assert equal["shapes"] == [{"shape": "3x2", "count": 2}, {"shape": "4x1", "count": 1}]
    assert equal["fill_percent"] == 66.7 and not found[0]["chosen"]
    assert "compare" not in run_json("--lengths", 5)


def test_settings_and_notes_tell_what_is_in_effect() -> None:
    found = run_json("--lengths", "3,3", "--memory", "streams", "--n-ctx", 21, "--n-batch", 8, "--n-ubatch", 16)
    settings = found["settings"]
    assert (settings["n_ctx"], settings["n_ctx_seq"], settings["n_ubatch"]) == (21, 10, 8)
    assert [note.split(":")[0] for note in found["notes"]] == [
        "n_ctx 21 over 2 streams",
        "n_ubatch 16 clamped to n_batch 8",
    ]
    stdout, stderr = run("--lengths", "3,3", "--n-batch", 8, "--n-ubatch", 16)
    assert "note: n_ubatch 16 clamped to n_batch 8" in stdout and stderr == ""


def test_pictures_and_page(tmp_path: Path) -> None:
    svg, html = tmp_path / "a.svg", tmp_path / "a.html"
    args = ("--lengths", "5,5,5,1", "--n-ubatch", 8, "--memory", "streams", "--compare")
    assert run(*args, "--svg", svg, "--html", html)[0] == run(*args)[0]
    assert svg.read_text().startswith("<svg ") and svg.read_text().rstrip().endswith("</svg>")
    page = html.read_text()
    for words in ("<!DOCTYPE html>", "<svg ", "ended because", "token-budget", "output row"):
        assert words in page
    _, stderr = run("--lengths", 5, "--svg", tmp_path / "no" / "a.svg", code=2)
    assert "cannot be written" in stderr


def test_png_with_pillow_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.png"
    monkeypatch.setitem(sys.modules, "PIL", None)  # as if it were not installed
    found = run_json("--lengths", 5, "--png", file, code=1)
    assert found["error"]["code"] == "capability" and "polyseq[plots]" in found["error"]["message"]
    assert not file.exists()
    monkeypatch.undo()
    image = pytest.importorskip("PIL.Image", reason="the picture itself needs Pillow")
    run("--lengths", "5,3", "--n-ubatch", 4, "--png", file)
    with image.open(file) as picture:
        assert picture.size[0] == 2400
        assert {(0xE6, 0x9F, 0x00), (0x56, 0xB4, 0xE9)} <= {colour for _, colour in picture.getcolors(1 << 16)}


# ---- rows in -----------------------------------------------------------------------------------------------


def test_rows_from_files_and_stdin(tmp_path: Path) -> None:
    rows = [{"token": 4, "seq": [0, 1], "pos": 0}, {"token": 5, "output": True}, {"seq": 1, "output": True}]
    one, many = tmp_path / "rows.json", tmp_path / "rows.jsonl"
    one.write_text("\ufeff" + json.dumps(rows))
    many.write_text("\n".join(map(json.dumps, rows)))
    found = run_json(one)
    assert run_json(many) == found == run_json("-", stdin=json.dumps(rows))
    (ubatch,) = found["ubatches"]
    assert ubatch["seq_ids"] == [[0, 1], [0], [1]] and ubatch["pos"] == [0, 1, 1] and ubatch["token"] == [4, 5, 0]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "give the rows once"),
        (("x.json", "--lengths", "5"), "give the rows once"),
        (("no-such-file.json",), "cannot be read"),
        (("--lengths", "5,,3"), "'' is neither"),
        (("--lengths", "5,-3"), "'-3' is neither"),
        (("--lengths", "ax3"), "'ax3' is neither"),
        (("--lengths", "300x1"), "more than 256 sequences"),
        (("--lengths", "5", "--held", "q"), "--held: 'q' is neither"),
        (("x.json", "--interleave"), "belong to --lengths"),
    ],
)
def test_asked_wrongly(args: tuple[str, ...], words: str) -> None:
    stdout, stderr = run(*args, code=2)
    assert stdout == "" and words in stderr


def test_a_row_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"seq": 0}\n{"sequence": 1}\n')
    assert run(file, code=1) == ("", "polyseq: row 1 has sequence; known keys are output, pos, seq, span, token\n")


# ---- refusals ------------------------------------------------------------------------------------------------


def test_a_refusal_says_why_and_exits_1() -> None:
    full = ("--lengths", "6,9", "--held", "4,6", "--n-ctx", 20, "--memory", "streams")
    stdout, stderr = run(*full, code=1)
    assert stdout == "" and stderr.startswith("polyseq: no slot: the batch needs 9 cells of stream 1, 4 of 10 are free")
    error = run_json(*full, code=1)["error"]
    assert (error["code"], error["needed"], error["free"], error["stream"]) == ("no_slot", 9, 4, 1)
    coupled = ("--lengths", "3,3", "--shared-prefix", 2, "--memory", "streams")
    assert run_json(*coupled, code=1)["error"]["code"] == "coupled_sequential"
    assert run_json("--lengths", 9, "--n-batch", 8, code=1)["error"]["code"] == "batch_size"
    for memory in ("window", "recurrent"):
        assert f"memory {memory}" in run("--lengths", 3, "--memory", memory)[0]


# ---- speed -----------------------------------------------------------------------------------------------------


def test_a_plan_loads_no_model_library() -> None:
    code = (
        "import sys\nfrom polyseq.cli import main\n"
        "sys.argv = ['polyseq', 'plan', '--lengths', '256x16', '--memory', 'streams', '--compare', '--ways']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert done.stdout.startswith("4096 tokens of 256 sequences")


def test_a_list_of_commands_loads_none() -> None:
    code = (
        "import sys\nfrom polyseq.cli import main\nsys.argv = ['polyseq', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print([name for name in ('numpy', 'polyseq.batch') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "generate" in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_of_itself_what_the_list_says(name: str) -> None:
    assert command(name).help == COMMANDS[name]


def test_a_large_plan_is_quick() -> None:
    run("--lengths", "256x16", "--memory", "streams")
    start = time.process_time()
    run("--lengths", "256x16", "--memory", "streams")
    assert time.process_time() - start < 0.5  # about 0.05 s; Python's start and imports come on top


def test_the_program_knows_all_its_commands() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0 and all(name in result.stdout for name in COMMANDS)
    assert "plan" in CliRunner().invoke(app, ["plam"]).stderr  # did you mean


def test_a_refusal_says_what_would_help() -> None:
    main = [sys.executable, "-c", "from polyseq.cli import main; main()", "plan"]
    what = ["--lengths", "6,9", "--held", "4,6", "--memory", "streams", "--n-ctx", "20"]
    done = subprocess.run([*main, *what], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and not done.stdout
    assert "no slot: the batch needs 9 cells of stream 1" in done.stderr
    assert "what would help: " in done.stderr and "set n_ctx to 30" in done.stderr
