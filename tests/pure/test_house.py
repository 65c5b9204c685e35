"""The house: imports run one way, and every module says where it stands."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import polyseq

SRC = Path(polyseq.__file__).parent
CPU = SRC / "backends" / "cpu"
FLOORS = [
    "errors",
    "lock",
    "lazy",
    "batch",
    "split",
    "memory",
    "graph",
    "models",
    "backends",
    "pooled",
    "never_ran",
    "outputs",
    "collector",
    "model",
    "context_sizes",
    "mode",
    "trace",
    "nan_guard",
    "dues",
    "compute",
    "rollback",
    "saved_state",
    "context",
    "embeddings",
    "engine",
    "explain",
    "cli",
]
# Inside backends/cpu: what compiles, what is compiled, what plans runs of it.
CPU_FLOORS = [
    *("words", "ir", "compiler"),
    *("panels", "isa", "rows", "linear", "kv", "tiles", "attention"),
    *("threads", "cache", "plan", "backend"),
]
BESIDE = {"weights", "tokenizer", "sampling"}
MAY_NOT_MEET = {("models", "backends"), ("backends", "models")}
NUMPY_ONLY = {"batch", "split", "memory"}
# What `polyseq plan` needs; it answers without a model. `context_sizes` says how sizes are clamped.
PLANS = {
    *("__init__", "blocks", "compare", "cost", "document", "grid", "html", "lanes", "load", "nonneg", "palette", "png"),
    *("advance", "advice", "batch_rules", "changes", "later_rules", "room", "situation"),
    *("recommend", "rows", "scene", "settings", "shapes", "simulation", "spec", "svg", "tables", "ways"),
}
PLANS_MAY_KNOW = {"batch", "split", "memory", "errors", "context_sizes", "explain"}
MODULES = sorted(SRC.rglob("*.py"))


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


def room(dotted: str, house: str = "polyseq") -> str | None:
    """The part of the house that this module stands in; None for modules elsewhere."""
    inside = dotted.removeprefix(f"{house}.")
    return inside.split(".")[0] if inside != dotted else None


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_run_one_way(path: Path) -> None:
    here = path.relative_to(SRC).parts[0].removesuffix(".py")
    if here == "__init__":
        return
    for other in {room(name) for name in imports(path)} - {None, here}:
        assert other is not None
        if here in BESIDE:
            assert other == "errors", f"{here} stands beside and may not know {other}"
        elif other not in BESIDE:
            assert FLOORS.index(other) < FLOORS.index(here), f"{here} imports {other}, which stands above it"
            assert (here, other) not in MAY_NOT_MEET


@pytest.mark.parametrize("path", sorted(CPU.rglob("*.py")), ids=lambda p: str(p.relative_to(CPU)))
def test_imports_run_one_way_inside_the_cpu_backend(path: Path) -> None:
    here = path.relative_to(CPU).parts[0].removesuffix(".py")
    others = {room(name, "polyseq.backends.cpu") for name in imports(path)} - {None, here}
    if path.name == "__init__.py":
        assert imports(path) == set()
        return
    for other in others:
        assert other is not None
        assert CPU_FLOORS.index(other) < CPU_FLOORS.index(here), f"{here} imports {other}, which stands above it"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SRC)))
def test_a_module_says_where_it_stands(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "no docstring"


def test_the_first_rooms_need_only_numpy() -> None:
    allowed = {
        "numpy",
        "polyseq",
        "__future__",
        "dataclasses",
        "typing",
        "collections",
        "itertools",
        "functools",
        "importlib",
        "operator",
        "threading",
    }
    for path in MODULES:
        if path.relative_to(SRC).parts[0] in NUMPY_ONLY:
            assert {name.split(".")[0] for name in imports(path)} <= allowed, path


def test_no_attribute_has_a_lock_for_all_instances() -> None:
    for path in MODULES:
        names = {
            a.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom) for a in n.names
        }
        assert "cached_property" not in names, f"{path}: see lazy.py"


def test_what_a_plan_needs_knows_no_model() -> None:
    for path in (SRC / "explain" / f"{name}.py" for name in sorted(PLANS)):
        assert {room(name) for name in imports(path)} - {None} <= PLANS_MAY_KNOW, path
    allowed = PLANS_MAY_KNOW | {"cli"}
    assert {room(name) for name in imports(SRC / "cli" / "plan.py")} - {None} <= allowed
