"""`polyseq embed` and `polyseq rerank` as programs, on tiny random models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from polyseq import Model, embed, rerank
from polyseq.cli import vectors
from polyseq.cli.app import app
from tiny_bert import N_EMBD, tiny_bert

TEXTS = ["the cat sat", "", "dog", "far far far"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("cli") / "bert", pooling="mean_tokens")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


def polyseq(*args: object, given: str | None = None) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in args], input=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def rows_of(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines()]


def test_lines_come_out_in_order_an_empty_one_included(bert: Path, file: Path) -> None:
    done = polyseq("embed", bert, file)
    assert done.exit_code == 0, done.stderr
    rows = rows_of(done.stdout)
    assert [row["index"] for row in rows] == [0, 1, 2, 3]
    wanted = embed(TEXTS, model=Model.load(bert))
    np.testing.assert_allclose([row["embedding"] for row in rows], wanted, atol=1e-6)
    assert f"embedded    4 texts of 15 tokens, {N_EMBD} wide, pooling mean" in done.stderr


def test_files_by_their_names(bert: Path, file: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    wanted = embed(TEXTS, model=Model.load(bert), pooling="cls", normalize=False)
    for suffix in (".npy", ".jsonl", ".parquet"):
        out = tmp_path / f"vectors{suffix}"
        done = polyseq("embed", bert, file, "--out", out, "--pooling", "cls", "--raw")
        assert done.exit_code == 0 and done.stdout == "", done.stderr
        found = {
            ".npy": lambda out=out: np.load(out),
            ".jsonl": lambda out=out: [row["embedding"] for row in rows_of(out.read_text())],
            ".parquet": lambda out=out: parquet_column(out, "embedding"),
        }[suffix]()
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".txt") == [
        "vectors.jsonl",
        "vectors.npy",
        "vectors.parquet",
    ]


def parquet_column(path: Path, name: str) -> list[Any]:
    table = pytest.importorskip("pyarrow.parquet").read_table(path)
    values: list[Any] = table[name].to_pylist()
    return values


def test_a_refused_line_keeps_its_place_and_costs_none(bert: Path, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('"dog"\n{"text": "' + "cat " * 60 + '"}\n{"text": "cat"}\n')
    done = polyseq("embed", bert, path, "--too-long", "refuse")
    assert done.exit_code == 1
    rows = rows_of(done.stdout)
    assert "embedding" in rows[0] and "embedding" in rows[2] and "62 tokens, the model takes 48" in rows[1]["error"]
    assert "refused     text 1: it has 62 tokens" in done.stderr
    told = json.loads(polyseq("embed", bert, path, "--too-long", "refuse", "--json").stdout)
    assert told["refused"][0]["index"] == 1 and told["embeddings"][1] is None and len(told["embeddings"][2]) == N_EMBD
    cut = polyseq("embed", bert, path, "--json")
    assert cut.exit_code == 0 and json.loads(cut.stdout)["truncated"] == [1]
    assert "1 texts were truncated" in json.loads(cut.stdout)["notes"][0]


@pytest.mark.parametrize(
    ("name", "content", "args", "code", "says"),
    [
        ("a.txt", "", (), 2, "holds no line"),
        ("a.jsonl", "{", (), 2, "line 1 is no JSON"),
        ("a.jsonl", "[1]", (), 2, "neither a string nor an object"),
        ("a.txt", "a", ("--out", "x.csv"), 2, "none of *.jsonl, *.npy, *.parquet"),
        ("a.txt", "a", ("--pooling", "max"), 2, "max"),
    ],
)
def test_what_cannot_be_done_is_said(
    bert: Path, tmp_path: Path, name: str, content: str, args: tuple[str, ...], code: int, says: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    done = polyseq("embed", bert, path, *args)
    assert done.exit_code == code and says in done.stderr


def test_rerank_shows_the_best_first(file: Path, tmp_path: Path) -> None:
    cross = tiny_bert(tmp_path / "cross", n_labels=1)
    scores = rerank("the cat", TEXTS, model=Model.load(cross))
    told = json.loads(polyseq("rerank", cross, file, "-q", "the cat", "--json").stdout)
    assert [r["index"] for r in told["ranked"]] == np.argsort(-scores).tolist()
    np.testing.assert_allclose([r["score"] for r in told["ranked"]], np.sort(scores)[::-1], atol=1e-5)
    shown = polyseq("rerank", cross, "-", "-q", "the cat", "--top", 2, given="\n".join(TEXTS))
    assert shown.exit_code == 0 and len(shown.stdout.splitlines()) == 3
    assert TEXTS[int(np.argmax(scores))] in shown.stdout.splitlines()[1]


def test_rerank_refuses_a_model_without_a_head(bert: Path, file: Path) -> None:
    done = polyseq("rerank", bert, file, "-q", "the cat")
    assert done.exit_code == 1 and "no classification head" in done.stderr and done.stdout == ""


def test_a_text_that_is_refused_costs_the_others_no_rank(tmp_path: Path) -> None:
    cross = tiny_bert(tmp_path / "cross", n_labels=1)
    texts = tmp_path / "texts.txt"
    texts.write_text("dog\n" + "far " * 60 + "\nthe cat\n")
    asked = ("rerank", cross, texts, "-q", "the cat", "--too-long", "refuse")
    told = polyseq(*asked, "--json")
    assert told.exit_code == 1
    found = json.loads(told.stdout)
    assert sorted(r["index"] for r in found["ranked"]) == [0, 2]
    assert [r["index"] for r in found["refused"]] == [1] and "the model takes 48" in found["refused"][0]["reason"]
    shown = polyseq(*asked)
    assert shown.exit_code == 1 and "refused     text 1: it has" in shown.stderr and len(shown.stdout.splitlines()) == 3


def test_parquet_says_what_it_needs(bert: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is computed."""
    monkeypatch.setattr(vectors, "find_spec", lambda name: None)
    done = polyseq("embed", bert, file, "--out", tmp_path / "v.parquet")
    assert done.exit_code == 2 and "needs pyarrow: pip install 'polyseq[parquet]'" in done.stderr.replace("\n", " ")
    assert not (tmp_path / "v.parquet").exists()
