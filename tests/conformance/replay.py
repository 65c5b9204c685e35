"""Replays recorded behaviour: python tests/conformance/replay.py FILE.jsonl [FILE...]

Prints each difference with case name and field, the cases that differ by rule, then `N passed, M failed`; exit 1 on
failures. The kind of a file is read from its cases.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from case import Verdict
from kv_cases import replay_kv
from logits_cases import LogitsReplay
from split_cases import replay_split
from swa_cases import replay_swa


def cases(path: Path) -> Iterator[dict[str, Any]]:
    """Raises SystemExit naming file and line where there is nothing to read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"{path}: {error}") from error
    for i, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise SystemExit(f"{path}:{i}: no JSON: {error}") from error


def replay(case: dict[str, Any], logits: LogitsReplay) -> Verdict:
    """By the shape of a case, not by its name. What breaks off is a difference, and the others go on."""
    name = str(case.get("name", "?"))
    try:
        if "mode" in case:
            return replay_split(case)
        if "ops" in case and isinstance(case["effective"]["kv_size"], int):
            return replay_kv(case)
        if "ops" in case:
            return replay_swa(case)
        return logits.replay(case)
    except Exception as error:
        return Verdict(name, [f"broke off: {type(error).__name__}: {error}"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--backend", default="auto", help="who computes logits (default: auto)")
    parser.add_argument("--model", help="model for logits files: a path or a known name (default: by file or tokens)")
    options = parser.parse_args()

    rules: Counter[str] = Counter()
    n_passed = n_failed = 0
    for path in options.files:
        logits = LogitsReplay(path, model=options.model, backend=options.backend)
        verdicts = [replay(case, logits) for case in cases(path)]
        if not verdicts:
            raise SystemExit(f"{path}: no cases")
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
