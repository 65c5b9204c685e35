"""Kernels become object code once, are found again, and are made anew when anything they consist of changes."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir

from polyseq.backends import cpu
from polyseq.backends.cpu.compiler import assemble
from polyseq.backends.cpu.compiler.code_files import CodeFiles, code_dirs
from polyseq.backends.cpu.compiler.compile import PACKAGE, compiled, function, source, source_digest
from polyseq.backends.cpu.compiler.cpuinfo import cpuinfo
from polyseq.backends.cpu.compiler.elf import ElfLoader
from polyseq.backends.cpu.compiler.features import Features, InstructionSet, features, host, of_host
from polyseq.backends.cpu.compiler.mcjit import McjitLoader
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.emit import Emit, Value
from polyseq.backends.cpu.threads import cores
from polyseq.errors import CapabilityError

SOURCES = Path(cpu.__file__).parent
AVX2 = frozenset({"avx2", "fma", "f16c"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}

# ---- which instructions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("here", "best"),
    [
        (frozenset(), Features(InstructionSet.GENERIC)),
        (AVX2 - {"f16c"}, Features(InstructionSet.GENERIC)),
        (AVX2 | {"avxvnni"}, Features(InstructionSet.AVX2, avx_vnni=True)),
        (AVX512 - {"avx512dq"}, Features(InstructionSet.AVX2)),
        (AVX512 | {"avx512bf16"}, Features(InstructionSet.AVX512)),
        (AVX512 | {"avx512vnni", "avx512bf16"}, Features(InstructionSet.AVX512_VNNI, bf16=True)),
    ],
)
def test_the_best_set_whose_needs_are_met(here: frozenset[str], best: Features) -> None:
    assert of_host(here) == best


def test_a_set_can_be_forced_by_argument_or_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYSEQ_ISA", raising=False)
    assert features() == of_host(host())
    assert features("generic").isa == InstructionSet.GENERIC
    monkeypatch.setenv("POLYSEQ_ISA", "generic")
    assert features().isa == InstructionSet.GENERIC
    assert features("emulated").isa == InstructionSet.EMULATED


def test_a_set_that_is_unknown_or_not_here_is_refused() -> None:
    with pytest.raises(CapabilityError, match="'mmx' is not known; known: avx512-vnni, avx512, avx2, generic"):
        features("mmx")
    if "avx512vnni" not in host():
        with pytest.raises(CapabilityError, match=r"needs .*avx512vnni"):
            features("avx512-vnni")


# ---- object code ---------------------------------------------------------------------------------------


CODE = ObjectCode("f", b"\x00\n\x01")
START = """
import sys
from polyseq.backends.cpu.compiler.compile import function
from polyseq.backends.cpu.compiler.cpuinfo import cpuinfo
from polyseq.backends.cpu.compiler.elf import ElfLoader
from polyseq.backends.cpu.compiler.features import features
made = []
function("threads.executor.stop", features(), made.append)
print(made, "numba" in sys.modules, "llvmlite.binding" in sys.modules)
"""
LLVM_LOADS = not (sys.platform == "linux" and platform.machine() == "x86_64")


def start(cache: Path) -> str:
    env = {**os.environ, "POLYSEQ_CACHE": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", START], env=env, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def test_a_second_process_finds_the_code_and_leaves_numba_and_llvm_alone(tmp_path: Path) -> None:
    assert start(tmp_path) == "['threads.executor.stop'] False True"
    assert start(tmp_path) == f"[] False {LLVM_LOADS}"
    (file,) = (tmp_path / "kernels").iterdir()
    file.write_bytes(file.read_bytes()[:-1])  # damaged: made anew
    assert start(tmp_path) == "['threads.executor.stop'] False True"


def forget() -> None:
    """As a new process: sources are read again."""
    source.cache_clear()
    source_digest.cache_clear()


def test_an_edit_to_the_kernel_or_to_what_it_imports_changes_the_digest(tmp_path: Path) -> None:
    root = tmp_path / "cpu"
    shutil.copytree(SOURCES, root)

    def digest(kernel: str) -> str:
        forget()
        return source_digest(f"{PACKAGE}.{kernel}", root)

    for kernel, name, counts in (
        ("threads.executor", "threads/executor.py", True),
        ("threads.executor", "threads/job.py", True),
        ("threads.executor", "words/records.py", True),
        ("threads.executor", "threads/cores.py", False),
        ("attention.tile_rows", "attention/softmax.py", True),  # imported as a module, out of its folder
        ("attention.tile_rows", "ir/emit.py", True),
        ("attention.tile_rows", "attention/self_attention.py", False),
    ):
        first = digest(kernel)
        original = (root / name).read_text()
        (root / name).write_text(original + "\n# edited\n")
        assert (digest(kernel) != first) == counts, name
        (root / name).write_text(original)
        assert digest(kernel) == first
    forget()


ARM = "aarch64-unknown-linux-gnu"
# Of every family; all kernels were made so once, none was run.
ON_ARM = (
    *("threads.executor.run", "threads.executor.work", "kv.placing.rows", "kv.cell_write.k_bf16", "tiles.tiling.tiles"),
    *("rows.quantise.rows", "rows.norm.rms", "rows.rope.neox", "linear.units.rows", "linear.float_linear.rows"),
    *("linear.gemm.q4_1", "linear.float_gemm.f16", "attention.tile_rows.int8"),
)


def test_the_generic_set_can_be_made_for_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(ARM)
    except RuntimeError:
        pytest.skip("this LLVM knows no ARM")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(llvm, "get_process_triple", lambda: ARM)
    monkeypatch.setattr(assemble, "_machine", lambda _: target.create_target_machine(cpu="neoverse-n1", opt=3))
    for name in ON_ARM:
        code = compiled(name, Features(InstructionSet.GENERIC)).data
        assert code[:4] == b"\x7fELF" and int.from_bytes(code[18:20], "little") == 183, name  # EM_AARCH64


# ---- loading without LLVM ------------------------------------------------------------------------------

elf_only = pytest.mark.skipif(LLVM_LOADS, reason="object code is loaded by LLVM here")


def sums_and_constants() -> ObjectCode:
    """out[0] += 3 * out[1] + 0.1 in f64: constants beside the code, and a call of memcpy into out[2]."""

    def body(e: Emit, out: Value, copy: Value) -> None:
        x = e.b.fmul(e.load(out, ir.DoubleType(), 8), e.const(ir.DoubleType(), 3.0))
        e.store(e.b.fadd(e.load(out, ir.DoubleType()), e.b.fadd(x, e.const(ir.DoubleType(), 0.1))), out)
        e.call(copy, e.add(out, 16), out, e.i64(8))

    return assemble.object_code(body, 2, "sums", features())


@elf_only
def test_code_loaded_without_llvm_does_the_same() -> None:
    code = sums_and_constants()
    found = []
    for load in (ElfLoader().load, McjitLoader().load):
        out = np.array([1.5, 2.0, 0.0])
        memcpy = ctypes.cast(ctypes.CDLL(None).memcpy, ctypes.c_void_p).value
        ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(load(code))(out.ctypes.data, memcpy)
        found.append(out)
    assert found[0].tolist() == found[1].tolist() == [7.6, 2.0, 7.6]


@elf_only
def test_code_that_cannot_be_loaded_is_refused() -> None:
    code = sums_and_constants()
    with pytest.raises(ValueError, match="is no ELF file"):
        ElfLoader().load(ObjectCode("sums", b"MZ" + code.data))
    with pytest.raises(ValueError, match="without its function other"):
        ElfLoader().load(ObjectCode("other", code.data))


@pytest.mark.skipif(not cpuinfo().get("flags"), reason="the system says nothing of its CPU")
def test_the_system_and_llvm_agree_on_the_cpu() -> None:
    named = AVX512 | {"avx512vnni", "avx512bf16", "avxvnni"}
    known = {name for name, on in llvm.get_host_cpu_features().items() if on}
    assert host() & named == known & named


def test_what_the_system_says_of_a_cpu(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: A: fast one\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t: fpu\n")
    assert cpuinfo(file) == {"processor": "0", "model name": "A: fast one", "flags": "fpu avx2"}
    assert cpuinfo(tmp_path / "none") == {}


def test_a_name_that_no_module_has_is_an_error() -> None:
    with pytest.raises(KeyError):
        function("threads.executor.nothing", features())


def test_where_nothing_can_be_written_code_goes_to_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (folder,) = code_dirs({"POLYSEQ_CACHE": str(tmp_path / "file" / "cache")})
    assert folder.is_dir() and folder.is_relative_to(tmp_path) and not folder.stat().st_mode & 0o022


@pytest.mark.usefixtures("no_home")
def test_a_user_without_a_home_keeps_code_in_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (folder,) = code_dirs({})
    assert folder.is_relative_to(tmp_path)


@pytest.mark.parametrize("temporary", ["a file", "nothing"])
def test_where_there_is_no_folder_at_all_code_is_made_and_not_kept(
    temporary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file") if temporary == "a file" else None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", list)
    folders = code_dirs({"POLYSEQ_CACHE": str(tmp_path / "file" / "cache")})
    assert folders == ()
    files = CodeFiles(folders)
    files.write("a", CODE)
    assert files.read("a") is None


def test_an_image_that_is_run_read_only_uses_what_it_was_warmed_up_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ, may = {"POLYSEQ_CACHE": str(tmp_path / "image")}, os.access
    CodeFiles(code_dirs(environ)).write("a", CODE)
    monkeypatch.setattr("os.access", lambda path, mode: "image" not in str(path) and may(path, mode))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    files = CodeFiles(code_dirs(environ))
    assert len(files.folders) == 2 and files.read("a") == CODE
    files.write("b", CODE)
    assert not (tmp_path / "image" / "kernels" / "b").exists() and files.read("b") == CODE


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only the system's own can be another user")
def test_an_image_s_user_runs_what_the_system_s_own_compiled() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        environ = {"POLYSEQ_CACHE": folder}
        CodeFiles(code_dirs(environ)).write("a", CODE)
        child = os.fork()
        if child == 0:
            os.setuid(12345)
            os._exit(0 if CodeFiles(code_dirs(environ)).read("a") == CODE else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    open_to_all = tmp_path / "cache" / "kernels"
    open_to_all.mkdir(parents=True)
    open_to_all.chmod(0o777)
    assert open_to_all not in code_dirs({"POLYSEQ_CACHE": str(tmp_path / "cache")})


def test_files_come_back_whole_or_not_at_all(tmp_path: Path) -> None:
    files = CodeFiles([tmp_path])
    files.write("a", CODE)
    assert files.read("a") == CODE
    assert files.read("b") is None
    CodeFiles([tmp_path / "gone"]).write("a", CODE)  # nothing kept, nothing raised


def test_a_file_that_others_own_or_can_write_to_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may be put in the place of ours after it was looked at."""
    files = CodeFiles([tmp_path])
    for name in ("a", "b"):
        files.write(name, CODE)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o644
    (tmp_path / "a").chmod(0o666)
    assert files.read("a") is None
    os.chown(tmp_path / "b", 12345, -1) if os.getuid() == 0 else monkeypatch.setattr("os.getuid", lambda: 12345)
    assert files.read("b") is None


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space left"), KeyboardInterrupt()])
def test_what_ends_writing_leaves_no_half_a_file(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object) -> None:
        raise error

    monkeypatch.setattr("os.replace", ended)
    with nullcontext() if isinstance(error, OSError) else pytest.raises(KeyboardInterrupt):
        CodeFiles([tmp_path]).write("a", CODE)
    assert list(tmp_path.iterdir()) == []


def test_processes_that_compile_at_once_and_a_folder_that_goes(tmp_path: Path) -> None:
    """Four processes in an empty folder, which is removed again and again meanwhile: all of them compute."""
    env = {**os.environ, "POLYSEQ_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", START.replace("made.append", "lambda _: made.append(1)")]
    running = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    while any(process.poll() is None for process in running):
        shutil.rmtree(tmp_path / "kernels", ignore_errors=True)
        time.sleep(0.01)
    assert [process.communicate()[0].split()[0] for process in running] == ["[1]"] * 4
    assert start(tmp_path) == "['threads.executor.stop'] False True"
    running = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert {process.communicate()[0].split()[0] for process in running} == {"[]"}


# ---- how many threads ----------------------------------------------------------------------------------


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def topology(siblings: list[str]) -> dict[str, str]:
    return {f"sys/devices/system/cpu/cpu{i}/topology/core_cpus_list": f"{s}\n" for i, s in enumerate(siblings)}


def test_hardware_threads_of_one_core_count_once(tmp_path: Path) -> None:
    root = write(tmp_path, topology(["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"]))
    assert cores.n_cores_of(set(range(8)), root) == 4
    assert cores.n_cores_of({0, 1, 4, 5}, root) == 2
    assert cores.n_cores_of({5}, root) == 1


def test_without_a_topology_every_cpu_is_a_core(tmp_path: Path) -> None:
    assert cores.n_cores_of({0, 1, 2}, tmp_path) == 3


@pytest.mark.parametrize(
    ("files", "n"),
    [
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "250000 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "10000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "7:memory:/x\n4:cpuacct,cpu:/y\n",
                "sys/fs/cgroup/cpu/y/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu/y/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        ({"proc/self/cgroup": "4:cpu:/y\n", "sys/fs/cgroup/cpu/y/cpu.cfs_quota_us": "-1\n"}, 8),
    ],
)
def test_a_quota_bounds_the_count(tmp_path: Path, files: dict[str, str], n: int) -> None:
    assert cores.n_cores_of(set(range(8)), write(tmp_path, files)) == n


def test_this_machine_has_a_core() -> None:
    assert 1 <= cores.n_cores() <= (os.cpu_count() or 1)
