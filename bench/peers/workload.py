"""The work that every engine of `bench/compare.py` is given, and how it is timed. Standard library only.

An engine is a program of its own, in an environment of its own, that prints one JSON object:

    {"rates": {"decode_1": tokens/s, ...}, "rss_mb": ..., "first": [token, ...]}

Cases: `prefill_N` one prompt of N tokens until its first answer token; `decode_K` K sequences from 128 to 192 tokens;
`unified_32` the same in one cache for all; `mixed` 32 prompts (8 each of 16, 24, 40, 400 tokens) in one go;
`rss_32` resident memory after 32 sequences of 192 tokens, in a process that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Protocol

PROMPT, STEPS = 128, 64
N_CTX_SEQ = PROMPT + STEPS
MIXED = [16, 24, 40, 400] * 8
SPEED = ("decode_1", "decode_8", "decode_32", "prefill_128", "prefill_512", "mixed", "unified_32")


class Engine(Protocol):
    """What a peer adapts. Greedy; no early end."""

    def start(self, prompts: list[list[int]]) -> list[int]:
        """Forgets everything, computes the prompts in one go and returns the first answer token of each."""
        ...

    def steps(self, n: int) -> list[list[int]]:
        """n more tokens of every sequence."""
        ...


@dataclass(frozen=True)
class Job:
    """How an engine is to be set up."""

    model: Path
    n_threads: int
    n_seqs: int
    n_cells: int  # in all
    unified: bool


def prompts_of(text: list[int], lengths: list[int]) -> list[list[int]]:
    """Neighbouring pieces of one text, beginning anew where it ends."""
    out, at = [], 0
    for n in lengths:
        at = 0 if at + n > len(text) else at
        out.append(text[at : at + n])
        at += n
    return out


def lengths_of(case: str) -> list[int]:
    kind, _, count = case.partition("_")
    if kind == "mixed":
        return MIXED
    return [int(count)] if kind == "prefill" else [PROMPT] * int(count)


def job_of(case: str, model: Path, n_threads: int) -> Job:
    lengths = lengths_of(case)
    longest = max(lengths) if case == "mixed" else max(lengths) + STEPS
    unified = case.startswith(("unified", "rss"))
    n_cells = sum(lengths) if case == "mixed" and unified else longest * len(lengths)
    return Job(model, n_threads, len(lengths), n_cells, unified)


def measure(case: str, engine: Engine, text: list[int]) -> tuple[float, list[int]]:
    """Tokens per second, and the first answer tokens."""
    prompts = prompts_of(text, lengths_of(case))
    if case.startswith(("prefill", "mixed")):
        engine.start(prompts)
        began = perf_counter()
        first = engine.start(prompts)
        return sum(map(len, prompts)) / (perf_counter() - began), first
    first = engine.start(prompts)
    engine.steps(4)
    began = perf_counter()
    engine.steps(STEPS - 8)
    return len(prompts) * (STEPS - 8) / (perf_counter() - began), first


def rss_mb() -> float:
    """Resident memory of this process now, MB of 10^6."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / 1e6


def main(make: Callable[[Job], Engine], *, cannot: frozenset[str] | set[str] = frozenset()) -> None:
    """Runs the cases asked for, but those the engine has no such mode for; `make(job)` gives an engine."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True, help="JSON list of token ids")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cases", default=",".join(SPEED))
    options = parser.parse_args()
    text = json.loads(options.text.read_text())
    rates: dict[str, float] = {}
    firsts: dict[str, list[int]] = {}
    out: dict[str, object] = {"rates": rates, "first": firsts}
    for case in options.cases.split(","):
        if case in cannot:
            continue
        engine = make(job_of(case, options.model, options.threads))
        if case == "rss_32":
            engine.start(prompts_of(text, lengths_of(case)))
            engine.steps(STEPS - 2)
            out["rss_mb"] = rss_mb()
        else:
            rates[case], firsts[case] = measure(case, engine, text)
        del engine
    json.dump(out, sys.stdout)
    print()
