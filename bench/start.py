"""What a start takes: to its first token, to its end, and of processor time, with and without bytecode.

python bench/start.py [--rounds 9] [FOLDER ...]: FOLDERs are source trees (`src` of other commits) to compare in turns.
Each is copied, so that neither case disturbs the other. One run of each comes first, so kernels are on disk.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent.parent / "src"
RUN = "import sys; sys.argv[0] = 'polyseq'; from polyseq.cli import main; main()"
GENERATE = ["generate", "smollm2-135m", "-p", "The capital of France is", "--temp", "0", "-n", "1"]


def seconds(source: Path, command: list[str], *, bytecode: bool) -> tuple[float, float, float]:
    """To the first line on stdout with words in it, to the end, and of the processor, user and system."""
    environ = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "" if bytecode else "1"}
    start = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-c", RUN, *command], env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
    )
    assert child.stdout is not None
    first = 0.0
    while piece := child.stdout.read(1 << 16):
        first = first or (time.perf_counter() - start if piece.strip() else 0.0)
    _, status, used = os.wait4(child.pid, 0)
    end = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{command[0]} ended with {child.returncode}")
    return first, end, used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("folders", nargs="*", type=Path, default=[HERE])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        copies = {}
        for i, folder in enumerate(asked.folders):
            for bytecode in (True, False):
                copies[folder, bytecode] = Path(place) / f"{i}-{bytecode}"
                shutil.copytree(folder, copies[folder, bytecode], ignore=shutil.ignore_patterns("__pycache__"))
        for command in (GENERATE, ["--help"]):
            found: dict[tuple[Path, bool], list[tuple[float, float, float]]] = {case: [] for case in copies}
            for round_ in range(asked.rounds + 1):
                for case, source in copies.items():
                    times = seconds(source, command, bytecode=case[1])
                    found[case] += [times] if round_ else []
            print(f"polyseq {command[0]}, medians of {asked.rounds}: first words, end, processor (s)")
            for (folder, bytecode), times in found.items():
                medians = "  ".join(f"{statistics.median(column):.2f}" for column in zip(*times, strict=True))
                print(f"  {folder} {'with' if bytecode else 'without'} bytecode: {medians}")


if __name__ == "__main__":
    main()
