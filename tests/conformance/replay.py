"""Replays recorded behaviour: python tests/conformance/replay.py FILE.jsonl [FILE...]

Prints each difference with case name and field, the cases that differ by rule, then `N passed, M failed`; exit 1 on
failures. The kind of a file is read from its cases.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from case import Verdict
from kv_cases import replay_kv
from logits_cases import LogitsReplay
from split_cases import replay_split


def cases(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def replayer(case: dict[str, Any], logits: LogitsReplay) -> Callable[[dict[str, Any]], Verdict]:
    """By the shape of a case, not by its name."""
    if "mode" in case:
        return replay_split
    if "ops" in case:
        return replay_kv
    return logits.replay


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--backend", default="auto", help="who computes logits (default: auto)")
    parser.add_argument("--model", help="model for logits files: a path or a known name (default: by the file's name)")
    options = parser.parse_args()

    rules: Counter[str] = Counter()
    n_passed = n_failed = 0
    for path in options.files:
        logits = LogitsReplay(path, model=options.model, backend=options.backend)
        verdicts = [replayer(case, logits)(case) for case in cases(path)]
        for verdict in (*verdicts, *logits.summary()):
            rules.update(verdict.rules)
            n_passed += verdict.passed
            n_failed += not verdict.passed
            for difference in verdict.differences:
                print(f"{path.name} {verdict.name}: {difference}")
    by_rule = ", ".join(f"{rule} {n}" for rule, n in sorted(rules.items(), key=lambda item: int(item[0][1:])))
    print(f"differs by rule: {by_rule or 'none'}")
    print(f"{n_passed} passed, {n_failed} failed")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
