"""A settings file on the command line: what an option leaves out, the file gives.

Enters: a path from `--settings`, options as typed. Leaves: values; what is typed wins over the file.
"""

from __future__ import annotations

import os
import platform
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import typer

from polyseq.cli.files import reading
from polyseq.errors import ContextError

if TYPE_CHECKING:
    from polyseq.explain.settings import Settings

T = TypeVar("T")


def read_settings(path: Path | None) -> Settings | None:
    """The file's settings, None without a file. Raises `typer.BadParameter`."""
    if path is None:
        return None
    try:
        with reading(path):  # imported only here: few have such a file
            settings: Settings = import_module("polyseq.explain.settings").Settings.read(path)
            return settings
    except ContextError as error:
        raise typer.BadParameter(str(error)) from None


def chosen(typed: T | None, from_file: T | None, default: T) -> T:
    """Pure. What was typed, else what the file says, else the default."""
    if typed is not None:
        return typed
    return default if from_file is None else from_file


def machine_facts() -> dict[str, Any]:
    """Pure. What a measurement holds for: the kind of machine, its cores, Python and NumPy. Names no host or user."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "n_cpus": n_cpus(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def n_cpus() -> int:
    """Pure. Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
