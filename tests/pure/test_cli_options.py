"""Options that commands share: the same everywhere, and each of them arrives where it is meant for."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from polyseq.cli.app import COMMANDS, app, command
from tiny_bert import tiny_bert
from tiny_gguf import write_tiny_gguf

RUN_NO_MODEL = {"plan", "trace", "pull"}
FORETELL = {"inspect"}  # what a run would take: threads take nothing
RUN_A_MODEL = sorted(set(COMMANDS) - RUN_NO_MODEL - FORETELL)
SHARED = ("backend", "n_threads", "kv_type")


def parameters(name: str) -> dict[str, Any]:
    return {p.name: p for p in command(name).params}


@pytest.mark.parametrize("name", SHARED)
def test_who_computes_is_asked_alike_by_every_command_that_runs_a_model(name: str) -> None:
    facts = {
        (p.opts[0], p.help, p.default, p.type.name, getattr(p, "rich_help_panel", None))
        for p in (parameters(run)[name] for run in (*RUN_A_MODEL, *(FORETELL if name != "n_threads" else ())))
    }
    assert len(facts) == 1
    without = RUN_NO_MODEL | (FORETELL if name == "n_threads" else set())
    assert not [other for other in without if name in parameters(other)]


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    """Of each command, a run on a tiny model."""
    folder = tmp_path_factory.mktemp("models")
    tiny = write_tiny_gguf(folder / "tiny.gguf")
    texts = folder / "texts.txt"
    texts.write_text("a\nb\n")
    bert, cross = tiny_bert(folder / "bert", pooling="mean_tokens"), tiny_bert(folder / "cross", n_labels=1)
    return {
        "generate": [tiny, "-p", "a", "-n", 1],
        "embed": [bert, texts],
        "rerank": [cross, texts, "-q", "a"],
        "tune": [tiny, "--seconds", 1],
        "verify": [tiny, "-p", "a"],
        "warmup": [tiny],
        "inspect": [tiny],
    }


@pytest.mark.parametrize("command", RUN_A_MODEL)
@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--backend", "abacus"], "abacus"),
        (["--backend", "reference", "--n-threads", 2], "the reference backend takes no n_threads"),
        (["--backend", "reference", "--kv-type", "int8"], "keeps K and V as f32, not int8"),
    ],
)
def test_it_reaches_the_backend(
    command: str, option: list[object], says: str, arguments: dict[str, list[object]]
) -> None:
    done = CliRunner().invoke(app, [command, *map(str, [*arguments[command], *option])])
    assert done.exit_code == 1 and says in done.stderr, done.output


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--backend", "abacus"], "abacus"),
        (["--backend", "reference", "--kv-type", "int8"], "keeps K and V as f32, not int8"),
        (["--backend", "cpu", "--kv-type", "int7"], "kv_type 'int7' is not there; known: bf16, f32, int8"),
    ],
)
def test_what_is_foretold_asks_the_backend(option: list[str], says: str, arguments: dict[str, list[object]]) -> None:
    done = CliRunner().invoke(app, ["inspect", *map(str, arguments["inspect"]), *option])
    assert done.exit_code == 1 and says in done.stderr, done.output


def test_what_is_ranked_has_its_titles(arguments: dict[str, list[object]]) -> None:
    done = CliRunner().invoke(app, ["rerank", *map(str, arguments["rerank"])])
    title, *lines = (line.split() for line in done.stdout.splitlines())
    assert title == ["score", "index", "text"]
    assert sorted(line[1:] for line in lines) == [["0", "a"], ["1", "b"]]
