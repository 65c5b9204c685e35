"""What `polyseq tune` found, as a file that other commands accept.

Enters: sizes, a cost model, facts about machine and load. Leaves: JSON, and back. Needs no model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from polyseq.errors import ContextError
from polyseq.explain.cost import ByteModel, CostModel

FORMAT = "polyseq settings 1"
_SIZES = ("n_ctx", "n_seq_max", "n_batch", "n_ubatch")


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes for one model on one machine, and what they rest on."""

    model: str  # a path, a known name or a hub id, as it was given
    backend: str
    n_ctx: int
    n_seq_max: int
    n_batch: int
    n_ubatch: int
    unified: bool
    cost: CostModel
    memory: ByteModel
    kv_bytes_per_cell: int
    load: Mapping[str, Any]  # users, prompt, answer, goal, and what was predicted for them
    machine: Mapping[str, Any]
    n_threads: int | None = None  # None: the backend's own
    kv_type: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "model": self.model,
            "backend": self.backend,
            "n_threads": self.n_threads,
            "kv_type": self.kv_type,
            "sizes": {**{name: getattr(self, name) for name in _SIZES}, "unified": self.unified},
            "load": dict(self.load),
            "cost": self.cost.to_json(),
            "memory": {**self.memory.to_json(), "kv_bytes_per_cell": self.kv_bytes_per_cell},
            "machine": dict(self.machine),
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Pure. Raises `ContextError` that names what is wrong."""
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise ContextError(f"this is no settings file: its format is not {FORMAT!r}")
        sizes, memory = _object(value, "sizes"), _object(value, "memory")
        if not isinstance(sizes.get("unified"), bool):
            raise ContextError("sizes: unified is neither true nor false")
        return cls(
            model=_text(value, "model"),
            backend=_text(value, "backend"),
            **{name: _whole(sizes, name) for name in _SIZES},
            unified=sizes["unified"],
            cost=CostModel.from_json(value.get("cost")),
            memory=ByteModel.from_json(memory),
            kv_bytes_per_cell=_whole(memory, "kv_bytes_per_cell"),
            load=_object(value, "load"),
            machine=_object(value, "machine"),
            n_threads=None if value.get("n_threads") is None else _whole(value, "n_threads"),
            kv_type=None if value.get("kv_type") is None else _text(value, "kv_type"),
        )

    def write(self, path: Path) -> None:
        """Changes the file. Raises `OSError`."""
        path.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises `OSError`, or `ContextError` for what is no settings file."""
        try:
            return cls.from_json(json.loads(path.read_bytes().decode("utf-8-sig")))
        except (ValueError, RecursionError) as error:  # JSON and UTF-8 errors are ValueErrors, and so is ContextError
            raise ContextError(f"{path}: {error}") from None

    def differs_from(self, machine: Mapping[str, Any]) -> list[str]:
        """Pure. A sentence for each fact in which a machine is not the one that was measured."""
        return [
            f"measured with {name} {self.machine[name]}, here it is {machine[name]}"
            for name in self.machine
            if name in machine and machine[name] != self.machine[name]
        ]


def _object(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = value.get(name)
    if not isinstance(found, dict):
        raise ContextError(f"{name} is {found!r}, it must be an object")
    return found


def _text(value: Mapping[str, Any], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str) or not found:
        raise ContextError(f"{name} is {found!r}, it must be a text")
    return found


def _whole(value: Mapping[str, Any], name: str) -> int:
    found = value.get(name)
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise ContextError(f"{name} is {found!r}, it must be a whole number of 1 or more")
    return found
