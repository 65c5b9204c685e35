"""`polyseq tune` on a tiny model: the table, the files it writes, one JSON object, refusals; settings on options."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from polyseq import Context, Model
from polyseq.cli.inspect import inspect
from polyseq.cli.settings import chosen, machine_facts, read_settings
from polyseq.cli.tune import fit_error, tune, unrest
from polyseq.cli.verify import verify
from polyseq.explain.cost import Observation
from polyseq.explain.curves import curves, spark, svg_of, text_lines
from polyseq.explain.measure import Bench, Measured, measure
from polyseq.explain.settings import Settings
from polyseq.explain.shapes import shapes_of
from tiny import tiny_llama
from tiny_gguf import write_tiny_gguf

TINY = tiny_llama()
MODEL = Model(TINY.architecture, TINY.weights, TINY.metadata)
LOAD = ["--users", "2", "--prompt", "40", "--answer", "6", "--seconds", "1"]


@pytest.fixture(scope="module")
def measured() -> Measured:
    return measure(MODEL, seconds=1.0)


def run(path: Path, *args: object, code: int = 0) -> Result:
    app = typer.Typer()
    app.command()(tune)
    result = CliRunner().invoke(app, [str(path), *LOAD, *map(str, args)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.stderr or result.stdout
    return result


# ---- the command -------------------------------------------------------------------------------------------


def test_table_picture_and_settings(tmp_path: Path) -> None:
    model, out, picture = write_tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "s.json", tmp_path / "c.svg"
    text = run(model, "--out", out, "--svg", picture, "--goal", "stall").stdout
    assert "2 users, prompts of 40, answers of 6; goal stall" in text
    assert "because: the shortest stall of the" in text and "Step time against rows" in text
    assert max(map(len, text.replace(str(tmp_path), "").splitlines())) <= 160
    settings = Settings.read(out)
    assert f"take n_batch {settings.n_batch}, n_ubatch {settings.n_ubatch}, n_seq_max {settings.n_seq_max}" in text
    assert settings.model == str(model) and settings.machine == machine_facts()
    ctx = Context(
        Model.load(model),
        n_ctx=settings.n_ctx,
        n_seq_max=settings.n_seq_max,
        n_batch=settings.n_batch,
        n_ubatch=settings.n_ubatch,
        unified=settings.unified,
    )
    assert not any("clamped" in note for note in ctx.notes)
    root = ElementTree.fromstring(picture.read_text())
    assert "Step time against decoding sequences" in "".join(root.itertext())


def test_inspect_and_verify_take_settings(tmp_path: Path) -> None:
    model, out = write_tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "s.json"
    run(model, "--out", out)
    settings = Settings.read(out)
    app = typer.Typer()
    app.command("inspect")(inspect)
    app.command("verify")(verify)

    def found(*args: object) -> dict[str, Any]:
        result = CliRunner().invoke(app, [*map(str, args), "--json"], catch_exceptions=False)
        assert result.exit_code == 0, result.stderr or result.stdout
        return json.loads(result.stdout)  # type: ignore[no-any-return]

    context = found("inspect", model, "--settings", out)["memory"]
    assert {name: context[name] for name in ("n_ctx", "n_seq_max", "n_ubatch", "unified")} == {
        name: getattr(settings, name) for name in ("n_ctx", "n_seq_max", "n_ubatch", "unified")
    }
    assert found("inspect", model, "--settings", out, "--n-ctx", 64)["memory"]["n_ctx"] == 64
    assert found("verify", model, "-p", "Hi", "--settings", out)["verdict"] != "defect"


def test_one_json_object(tmp_path: Path) -> None:
    result = run(write_tiny_gguf(tmp_path / "tiny.gguf"), "--json")
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["settings"]["sizes"]["n_batch"] == min(found["candidates"][0]["choice"]["n_batch"], 96)
    assert all(m["median_s"] == np.median(m["seconds"]) for m in found["measured"])
    assert found["reason"] and 0 <= found["fit_error"] < 1


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--goal", "speed"], 2, "throughput, stall, memory"),
        (["--out", "/nowhere/at/all.json"], 2, "cannot be written"),
        (["--backend", "none"], 1, "none"),
    ],
)
def test_refusals_say_what_is_wrong(args: list[str], code: int, says: str, tmp_path: Path) -> None:
    assert says in run(write_tiny_gguf(tmp_path / "tiny.gguf"), *args, code=code).stderr


# ---- measuring ---------------------------------------------------------------------------------------------


def test_what_was_measured_is_predicted_again(measured: Measured) -> None:
    tries = chain([measured], (measure(MODEL, seconds=2.0) for _ in range(2)))
    assert any(fit_error(m) < 0.25 for m in tries)  # all overhead, so mostly noise; a real model is held to less
    assert {p.curve for p in measured.points} == {"rows", "outputs", "sequences", "cells", "mixed"}
    assert all(len(o.seconds) >= 1 and o.median > 0 for o in measured.observations)
    n_values = 2 * 2 * 2 * 8  # layers, K and V, heads, width
    width = {"f32": 4, "bf16": 2}[measured.options.kv_type or "f32"]
    assert measured.backend == measured.effective.to_json()["settings"]["backend"]["effective"]
    assert n_values * width <= measured.kv_bytes_per_cell <= 4 * n_values * width  # heads of 8 are padded by some
    large = [n for p, n in zip(measured.byte_points, measured.n_bytes, strict=True) if p.n_rows == 64]
    assert min(large) > 64 * 32 * 4  # 64 rows of the residual stream at least


def test_what_a_backend_keeps_to_work_in_is_counted() -> None:
    """Its buffers are made by the first call and stay: a later call takes next to nothing."""
    bench = Bench(MODEL, backend="cpu", most_seconds=1.0)
    found = bench.measured()
    assert found.packed
    (n_bytes, *_) = (n for p, n in zip(found.byte_points, found.n_bytes, strict=True) if p.n_rows == 64)
    ctx = Context(MODEL, n_ctx=64, backend="cpu")
    batch = ctx.batch()
    batch.extend(np.arange(64) % 64, seq=0)
    ctx.decode(batch)
    kept = ctx._cache.arena(0).nbytes  # type: ignore[attr-defined]
    assert n_bytes > kept > 64 * 32 * 4


def test_points_run_as_they_say() -> None:
    bench = Bench(MODEL, most_seconds=1.0)
    assert all(bench.expected(point) == np.inf for point in bench.points)
    for point in bench.points:
        bench.run(point)
    found = bench.measured()
    for point, o in zip(found.points, found.observations, strict=True):
        assert sum(s.n_tokens for s in o.shapes) == point.n_rows
        assert all(s.unified == point.unified for s in o.shapes)
        n_visible = sum(n * past + n * (n + 1) // 2 for n, past in zip(point.rows, point.past, strict=True))
        assert sum(s.n_visible for s in o.shapes) == n_visible
        assert bench.expected(point) == o.seconds[0]


def test_the_shapes_are_those_of_a_context() -> None:
    ctx = Context(MODEL, n_ctx=64, n_seq_max=2, n_ubatch=8)
    batch = ctx.batch()
    batch.extend(np.arange(10), seq=0)
    batch.extend(np.arange(3), seq=1, output=True)
    ubatches = ctx.plan(batch).ubatches
    shapes = shapes_of(ctx.memory, ctx.plan(batch))
    assert [s.n_tokens for s in shapes] == [u.n_tokens for u in ubatches] and len(shapes) > 1
    assert sum(s.n_outputs for s in shapes) == 3
    ctx.decode(batch)


def test_numbers_of_repeats() -> None:
    assert unrest([Observation((), (1.0, 2.0, 3.0)), Observation((), (1.0, 1.0))]) == 0.5


# ---- curves ------------------------------------------------------------------------------------------------


def test_curves_are_the_medians(measured: Measured) -> None:
    found = curves(measured)
    assert [c.unit for c in found] == ["ms", "rows/s", "ms", "ms", "MiB"]
    rows = found[0].lines[0]
    medians = {p.n_rows: 1e3 * o.median for p, o in zip(measured.points, measured.observations, strict=True)
               if p.curve == "rows"}  # fmt: skip
    assert dict(zip(rows.x, rows.measured, strict=True)) == medians
    assert all(len(line) <= 80 for line in text_lines(found))
    root = ElementTree.fromstring(svg_of(found, title="a < b"))
    marks = [e for e in root.iter() if e.tag.endswith(("circle", "rect")) and len(e)]
    assert len(marks) == sum(len(line.x) for c in found for line in c.lines)


def test_a_spark_is_as_high_as_its_value() -> None:
    assert spark([0.0, 4.0, 8.0]) == "▁▅█" and spark([]) == "" and spark([0.0]) == "▁"


# ---- settings on the command line --------------------------------------------------------------------------


def test_what_is_typed_wins_over_the_file() -> None:
    assert chosen(1, 2, 3) == 1 and chosen(None, 2, 3) == 2 and chosen(None, None, 3) == 3
    assert chosen(False, True, True) is False


def test_a_file_that_is_none_is_bad_usage(tmp_path: Path) -> None:
    assert read_settings(None) is None
    with pytest.raises(typer.BadParameter, match="cannot be read"):
        read_settings(tmp_path / "none.json")
    (tmp_path / "s.json").write_text("[]")
    with pytest.raises(typer.BadParameter, match="no settings file"):
        read_settings(tmp_path / "s.json")
