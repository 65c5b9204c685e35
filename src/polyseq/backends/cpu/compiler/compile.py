"""Kernels as C functions: compiled on demand, one by one, and kept on disk as object code.

Enters: a kernel's name, `"<room>.<module>.<kernel>"`, where that module of the backend holds `KERNELS`, a mapping of
names to functions that make its `ObjectCode` for given `Features`. Leaves: the address of `void f(int64_t, ...)`. A
start that finds all its kernels on disk does not import LLVM.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

import llvmlite

from polyseq.backends.cpu.compiler.code_files import CodeFiles, code_dirs
from polyseq.backends.cpu.compiler.cpuinfo import cpu_name
from polyseq.backends.cpu.compiler.elf import ElfLoader
from polyseq.backends.cpu.compiler.features import Features, host
from polyseq.backends.cpu.compiler.object_code import ObjectCode

PACKAGE = "polyseq.backends.cpu"
Progress = Callable[[str], None]  # told the name of a kernel before it is compiled

_IMPORT = re.compile(rf"^from ({re.escape(PACKAGE)}[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)


def function(name: str, features: Features, progress: Progress | None = None) -> int:
    """Changes the process and the code folder where needed: the address of this kernel's C function.

    Raises KeyError for a name that no module has.
    """
    with _one_at_a_time:
        return _code().address(name, features, progress)


_one_at_a_time = threading.RLock()
if hasattr(os, "register_at_fork"):  # not on Windows; a fork waits until no other thread compiles
    _release = _one_at_a_time.release
    os.register_at_fork(before=_one_at_a_time.acquire, after_in_parent=_release, after_in_child=_release)


class _Code:
    """All code loaded into this process."""

    def __init__(self) -> None:
        self._load = _load()
        self._files = CodeFiles(code_dirs())
        self._addresses: dict[tuple[str, Features], int] = {}

    def address(self, name: str, features: Features, progress: Progress | None) -> int:
        if (name, features) not in self._addresses:
            self._addresses[name, features] = self._load(self._object_code(name, features, progress))
        return self._addresses[name, features]

    def _object_code(self, name: str, features: Features, progress: Progress | None) -> ObjectCode:
        file = f"{name}-{_digest(features, host(), *_versions(), source_digest(_module(name)))}"
        kept = self._files.read(file)
        if kept is not None:
            return kept
        if progress is not None:
            progress(name)
        code = compiled(name, features)
        self._files.write(file, code)
        return code


_code = cache(_Code)


def _load() -> Callable[[ObjectCode], int]:
    """What loads object code here."""
    if sys.platform == "linux" and platform.machine() == "x86_64":
        return ElfLoader().load
    mcjit = import_module(f"{PACKAGE}.compiler.mcjit")  # only here: importing LLVM takes a while, and memory
    load: Callable[[ObjectCode], int] = mcjit.McjitLoader().load
    return load


def compiled(name: str, features: Features) -> ObjectCode:
    """Pure. The kernel for this CPU. Raises KeyError as `function`."""
    code: ObjectCode = import_module(_module(name)).KERNELS[name.rpartition(".")[2]](features)
    return code


def _module(name: str) -> str:
    return f"{PACKAGE}.{name.rpartition('.')[0]}"


@cache
def source_digest(module: str, root: Path = Path(__file__).parent.parent) -> str:
    """Pure. A digest of the module's source and of all sources in this package that it imports."""
    found, todo = dict[str, str](), [module]
    while todo:
        name = todo.pop()
        file = _file(root, name)
        if name not in found and file is not None:
            found[name], imported = source(file)
            todo += imported
    return _digest(*sorted(found.items()))


@cache
def source(file: Path) -> tuple[str, frozenset[str]]:
    """Pure. A digest of a file, and names in this package that it imports, some of them no modules. Kept: kernels share
    most of their sources.
    """
    text = file.read_bytes()
    imported: set[str] = set()
    for module, names in _IMPORT.findall(text.decode()):
        inside = {f"{module}.{n}" for n in re.findall(r"\w+", names)}  # where a folder is asked for modules
        imported |= {module, *inside}
    return _digest(text), frozenset(imported)


@cache
def _file(root: Path, module: str) -> Path | None:
    """Pure. The module's source, None for a name that is no module. Kept: most are asked for again and again."""
    path = root.joinpath(*module.removeprefix(PACKAGE).split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file if file.is_file() else None


def _versions() -> tuple[object, ...]:
    """Pure. What else decides on the code."""
    return (llvmlite.__version__, sys.platform, sys.version_info[:2], cpu_name())


def _digest(*parts: object) -> str:
    canonical = [sorted(part) if isinstance(part, frozenset) else part for part in parts]
    return hashlib.sha256(repr(canonical).encode()).hexdigest()[:20]
