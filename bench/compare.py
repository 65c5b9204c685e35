"""polyseq beside its peers on the same work, in one run: ratios, a picture, JSON.

    make bench-peers                        each peer's own environment under .peers/ (minutes, once)
    python bench/compare.py [--rounds 3] [--json] [--svg FILE] [--peer NAME=COMMAND ...] [--log FILE]
    python bench/compare.py --from FILE     the report of a run, or of as much of it as there is

Every engine is a program that prints one JSON object (`bench/peers/workload.py` says which); engines take turns,
A B C A B C, one process per turn, and medians are compared. A ratio is ours over the best peer of that column, so
above 1 we are ahead; for `rss_32` it is theirs over ours. `--peer` adds any command that prints the same object.

Each turn is a line of a log as soon as it is over. An interrupt, SIGTERM or an engine that fails ends the run; what is
reported then are the rounds that all engines were through.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from bars import bars
from workload import SPEED

from polyseq import Model

HERE = Path(__file__).parent
PEERS = HERE.parent / ".peers"
OURS = "polyseq"
CASES = (*SPEED, "rss_32")

Runs = dict[str, list[dict[str, Any]]]  # by engine, its results round by round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--only", help="comma-separated peers, of those that are there")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--log", type=Path, help="where turns are written; left out, in the folder for temporary files")
    parser.add_argument(
        "--from", dest="written", type=Path, metavar="FILE", help="report what a log holds, run nothing"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    log, ended = options.written, ""
    if log is None:
        log = options.log or Path(tempfile.gettempdir()) / f"polyseq-compare-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
        ended = measured(options, log)
    started, runs = complete(log.read_text())
    if runs:
        report(runs, started["cases"], started["threads"], options)
    if ended or not runs:
        raise SystemExit(f"{ended or 'no round is complete'}; the turns there are: {log}")


def measured(options: argparse.Namespace, log: Path) -> str:
    """Changes the log: turn after turn. Why the run ended early, if it did."""
    model = Model.load(options.model)
    assert model.path is not None
    with tempfile.TemporaryDirectory() as folder, open(log, "w") as file:
        text = Path(folder) / "text.json"
        text.write_text(json.dumps(text_of(model)))
        engines = commands(model.path, text, options.threads, options.only)
        peers = further(options.peer, engines)
        started = {"engines": [*engines, *peers], "cases": options.cases.split(","), "threads": options.threads}
        return take_turns(started, engines, peers, options.rounds, file)


def take_turns(
    started: dict[str, Any], engines: Mapping[str, list[str]], peers: Mapping[str, list[str]], n: int, log: IO[str]
) -> str:
    """Changes the log by what is started and n rounds of turns. Why it ended early, if it did."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(json.dumps(started), file=log, flush=True)
    try:
        for i in range(n):
            for name in started["engines"]:
                print(f"round {i + 1} of {n}: {name}", file=sys.stderr)
                result = turn(engines[name], started["cases"]) if name in engines else run(peers[name])
                print(json.dumps({"engine": name, "result": result}), file=log, flush=True)
    except KeyboardInterrupt:
        return "interrupted"
    except EngineFailed as error:
        return str(error)
    return ""


def complete(log: str) -> tuple[dict[str, Any], Runs]:
    """Pure. What was started, and the results of the rounds that every engine was through."""
    started, *turns = [json.loads(line) for line in log.splitlines(keepends=True) if line.endswith("\n")]
    runs: Runs = {name: [t["result"] for t in turns if t["engine"] == name] for name in started["engines"]}
    n_rounds = min(map(len, runs.values()))
    return started, {name: results[:n_rounds] for name, results in runs.items()} if n_rounds else {}


def further(peers: list[str], engines: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Pure. Commands by name. Exits for what is no NAME=COMMAND, and for a name that is taken."""
    found: dict[str, list[str]] = {}
    for peer in peers:
        name, _, command = peer.partition("=")
        if not name or not command.strip() or name in engines or name in found:
            raise SystemExit(f"--peer {peer!r}: NAME=COMMAND is wanted, with a NAME of its own")
        found[name] = shlex.split(command)
    return found


def text_of(model: Model) -> list[int]:
    """Token ids of this project's own prose."""
    pages = sorted((HERE.parent / "docs").glob("*.md"))
    return [int(t) for page in pages for t in model.tokenizer.encode(page.read_text(), add_special=False)]


def commands(model: Path, text: Path, n_threads: int, only: str | None) -> dict[str, list[str]]:
    """Ours, and each peer whose environment is there."""
    common = ["--text", str(text), "--threads", str(n_threads)]

    def command(python: str | Path, program: str, path: Path) -> list[str]:
        return [str(python), str(HERE / "peers" / program), "--model", str(path), *common]

    llama, openvino, torch = (PEERS / name / "bin" / "python" for name in ("llama-cpp", "openvino", "transformers"))
    peers = {
        "llama.cpp Q4_1": command(llama, "llama_cpp_peer.py", model),
        "llama.cpp Q4_0": command(llama, "llama_cpp_peer.py", PEERS / "q4_0.gguf"),
        "OpenVINO INT8": command(openvino, "openvino_peer.py", PEERS / "ir" / "int8"),
        "OpenVINO INT4": command(openvino, "openvino_peer.py", PEERS / "ir" / "int4"),
        "transformers bf16": command(torch, "transformers_peer.py", model),
    }
    there = {n: c for n, c in peers.items() if Path(c[0]).exists() and Path(c[3]).exists()}
    wanted = list(there) if only is None else [name for name in only.split(",") if name]
    if missing := [name for name in wanted if name not in there]:
        raise SystemExit(f"--only: {', '.join(missing)} is not there; there are: {', '.join(there) or 'none'}")
    chosen = {name: there[name] for name in wanted}
    return {OURS: command(sys.executable, "ours.py", model), **chosen}


def turn(command: list[str], cases: list[str]) -> dict[str, Any]:
    """One process for the speeds; memory has one of its own."""
    speed = [case for case in cases if case != "rss_32"]
    out = run([*command, "--cases", ",".join(speed)]) if speed else {"rates": {}, "first": {}}
    if "rss_32" in cases:
        out["rss_mb"] = run([*command, "--cases", "rss_32"]).get("rss_mb")
    return out


class EngineFailed(Exception):
    """One ended with an error, or did not say what is asked of it."""


def run(command: list[str]) -> dict[str, Any]:
    """What an engine printed last. Raises EngineFailed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise EngineFailed(f"{shlex.join(command)} cannot be started: {error}") from error
    if done.returncode:
        raise EngineFailed(f"{shlex.join(command)} failed:\n{done.stderr[-3000:]}\n")
    printed = done.stdout.strip().splitlines()[-1:]
    try:
        return sound(json.loads("".join(printed)))
    except ValueError as error:
        raise EngineFailed(f"{shlex.join(command)} printed no result: {error}; its last line: {printed}") from error


def sound(result: Any) -> dict[str, Any]:
    """Pure. The result with all that a report reads. Raises ValueError where it is another thing."""
    if not isinstance(result, dict):
        raise ValueError("it is no object")
    rates, first, rss = result.get("rates", {}), result.get("first", {}), result.get("rss_mb")
    if not isinstance(rates, dict) or not all(map(_is_rate, rates.values())) or not (rss is None or _is_rate(rss)):
        raise ValueError("rates and rss_mb are not numbers above 0")
    if not isinstance(first, dict) or not all(isinstance(tokens, list) for tokens in first.values()):
        raise ValueError("first is no lists of tokens by case")
    return {**result, "rates": rates, "first": first}


def _is_rate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def report(runs: Runs, cases: list[str], n_threads: int, options: argparse.Namespace) -> None:
    raw = {name: {case: median_of(turns, case) for case in cases} for name, turns in runs.items()}
    best = {case: best_peer(raw, case) for case in cases}
    ratios = {
        case: (peer[1] / raw[OURS][case] if case == "rss_32" else raw[OURS][case] / peer[1])
        for case in cases
        if (peer := best[case]) is not None and raw[OURS][case]
    }
    agree = {name: agreement(runs[OURS][0], turns[0]) for name, turns in runs.items()}
    if options.svg:
        options.svg.write_text(bars(ratios, {case: peer[0] for case, peer in best.items() if peer}))
    if options.json:
        print(json.dumps({"ratios": ratios, "raw": raw, "agree": agree, "threads": n_threads}, indent=1))
        return
    print(f"{'tokens/s, median of ' + str(len(runs[OURS])):20}" + "".join(f"{case:>13}" for case in cases) + "   agree")
    for name, row in raw.items():
        figures = "".join(f"{row[case]:13.0f}" if row[case] else f"{'-':>13}" for case in cases)
        share = agree[name]
        print(f"{name:20}{figures}" + (f"{'-':>8}" if share is None else f"{share:8.2f}"))
    print(f"{'ours / best peer':20}" + "".join(f"{ratios[c]:13.2f}" if c in ratios else f"{'-':>13}" for c in cases))
    print("rss_32 in MB, its ratio theirs / ours; agree: first answer tokens equal to ours")


def median_of(turns: list[dict[str, Any]], case: str) -> float:
    values = [t.get("rss_mb") if case == "rss_32" else t["rates"].get(case) for t in turns]
    there = [v for v in values if v]
    return statistics.median(there) if there else 0.0


def best_peer(raw: dict[str, dict[str, float]], case: str) -> tuple[str, float] | None:
    peers = [(name, row[case]) for name, row in raw.items() if name != OURS and row[case]]
    if not peers:
        return None
    return min(peers, key=lambda p: p[1]) if case == "rss_32" else max(peers, key=lambda p: p[1])


def agreement(ours: dict[str, Any], theirs: dict[str, Any]) -> float | None:
    """Share of first answer tokens that are the same: do they compute the same model? None where none is said."""
    pairs = [
        (a, b)
        for case, tokens in ours.get("first", {}).items()
        for a, b in zip(tokens, theirs.get("first", {}).get(case, []), strict=False)
    ]
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else None


if __name__ == "__main__":
    main()
