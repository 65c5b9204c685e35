"""Two source trees step by step in turns: how much faster is one, where the machine's speed changes by the minute?

    python bench/duel.py OTHER/src src [--cases decode_1,decode_8,...] [--pairs 5] [--steps 30]

Two processes, one for each tree, take steps in turns; a pair's ratio is the median of all neighbouring steps' ratios,
the first tree's time over the second's. Where memory happens to lie differs from process to process, and one sequence
notices: so several pairs of processes are started, and their ratios' median, least and largest are reported. Cases are
decode_N and unified_N (a token of each of N sequences) and prefill_N (a prompt of N tokens).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

WORKER = Path(__file__).with_name("duel_worker.py")
CASES = "decode_1,decode_8,decode_32,unified_32,prefill_128,prefill_512"


class Fighter:
    """One tree's process."""

    def __init__(self, tree: Path, model: str, backend: str) -> None:
        environ = {**os.environ, "PYTHONPATH": str(tree.resolve())}
        command = [sys.executable, str(WORKER), model, backend]
        self._child = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def step(self, case: str) -> float:
        """Seconds of one more step."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(f"{case}\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        if not answer:
            sys.exit(f"{WORKER.name} ended with {self._child.wait()}")
        return float(answer)

    def end(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()


def ratio(fighters: list[Fighter], case: str, n_steps: int) -> float:
    """Median of the first's seconds over the second's."""
    ratios = []
    for i in range(n_steps):
        seconds = [0.0, 0.0]
        for turn in (i, i + 1):  # who begins changes
            seconds[turn % 2] = fighters[turn % 2].step(case)
        ratios.append(seconds[0] / seconds[1])
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs=2, type=Path)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    asked = parser.parse_args()
    cases = asked.cases.split(",")
    found: dict[str, list[float]] = {case: [] for case in cases}
    for pair in range(asked.pairs):
        fighters = [Fighter(tree, asked.model, asked.backend) for tree in asked.trees]
        for case in cases:
            found[case].append(ratio(fighters, case, asked.steps))
        for fighter in fighters:
            fighter.end()
        print(f"pair {pair + 1} of {asked.pairs}: " + ", ".join(f"{case} {found[case][-1]:.2f}" for case in cases))
    for case, ratios in found.items():
        print(f"{case:12} {statistics.median(ratios):.2f}  ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
