"""Texts per second beside the peers, in one run: engines take turns, medians, cosine to float32.

    python bench/embed.py [--rounds 5] [--json] [--only NAMES] [--peer NAME=COMMAND ...]

Two sets of 256 texts: short ones (up to 24 tokens) and a mixture of 8 to 256. `--peer` adds any program that answers
as `bench/peers/embed_work.py` says; `--model` and `--threads` are put behind its command. A peer that gives no answer
within `--patience` seconds per text, or ends, is left out from then on and reported so.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from polyseq import Model

HERE = Path(__file__).parent
OURS, TRUTH = "polyseq", "transformers f32"
N_TEXTS = 256
LOADING_S = 60.0  # that a peer has before its first answer
SETS = ("short", "mixed")


class Lost(Exception):
    """A peer gives no answer any more; the text says why."""


class Engine:
    """A peer's process, asked line by line; `patience`: seconds that it has per text, and for loading its model."""

    def __init__(self, command: list[str], *, patience: float) -> None:
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, text=True
        )
        self.patience, self.loading = patience, LOADING_S

    def embed(self, texts: list[str], rows: Path | None = None) -> float:
        """Seconds for the texts. Raises `Lost`, and then the process has ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        limit, self.loading = self.loading + self.patience * len(texts), 0.0
        try:
            self.process.stdin.write(json.dumps({"texts": texts, "rows": None if rows is None else str(rows)}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Lost(self._ended()) from None
        if not select.select([self.process.stdout], [], [], limit)[0]:
            self.process.kill()
            self.process.wait()
            raise Lost(f"hung: no answer within {limit:.0f} s for {len(texts)} texts")
        answer = self.process.stdout.readline()
        if not answer:
            raise Lost(self._ended())
        return float(json.loads(answer)["seconds"])

    def _ended(self) -> str:
        code = self.process.wait()
        self.said.seek(0)
        lines = self.said.read().strip().splitlines() or ["it said nothing"]
        return f"ended with code {code}: {lines[-1]}"

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Engines:
    """Those still there, by name, and why others are not."""

    def __init__(self, engines: dict[str, Engine]) -> None:
        self.here, self.lost = engines, dict[str, str]()

    def embed(self, name: str, texts: list[str], rows: Path | None = None) -> float | None:
        """Seconds for the texts; None: the peer was lost, now or before. Raises SystemExit if it is polyseq."""
        if name in self.lost:
            return None
        try:
            return self.here[name].embed(texts, rows)
        except Lost as why:
            if name == OURS:
                raise SystemExit(f"{name} {why}") from None
            print(f"lost: {name} {why}", file=sys.stderr)
            self.lost[name] = str(why)
            return None

    def close(self) -> None:
        """Ends those that are here."""
        for name in self.here.keys() - self.lost.keys():
            self.here[name].close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="all-minilm-l6-v2")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--n-texts", type=int, default=N_TEXTS, help="in each set")
    parser.add_argument("--patience", type=float, default=1.0, help="seconds that a peer has for a text (default 1)")
    parser.add_argument("--only", help="comma-separated engines, beside polyseq")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model = Model.load(options.model)
    assert model.path is not None
    texts = text_sets(model, options.n_texts)
    programs = commands(model.path, options)
    engines = Engines({name: Engine(command, patience=options.patience) for name, command in programs.items()})
    seconds: dict[str, dict[str, list[float]]] = {name: {s: [] for s in SETS} for name in programs}
    rows: dict[str, dict[str, np.ndarray]] = {name: {} for name in programs}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "rows.npy"
        for name in programs:
            for one in SETS:  # also the warm-up
                print(f"warm-up: {name}, {one}", file=sys.stderr)
                if engines.embed(name, texts[one], place) is not None:
                    rows[name][one] = np.load(place)
    for i in range(options.rounds):
        for one in SETS:
            for name in programs:
                print(f"round {i + 1} of {options.rounds}: {name}, {one}", file=sys.stderr)
                took = engines.embed(name, texts[one])
                if took is not None:
                    seconds[name][one].append(took)
    engines.close()
    here = [name for name in programs if name not in engines.lost]
    report({name: seconds[name] for name in here}, {name: rows[name] for name in here}, engines.lost, options)


def text_sets(model: Model, n: int) -> dict[str, list[str]]:
    """Different texts made of this project's own prose and the tests' sentences, each cut to a length in tokens."""
    pages = sorted((HERE.parent / "docs").glob("*.md"))
    prose = [(HERE.parent / "tests/data/texts.txt").read_text("utf-8"), *(p.read_text("utf-8") for p in pages)]
    words = [word for word in " ".join(prose).split() if "[" not in word]  # tokenizers differ about a written [SEP]
    n_tokens = {w: len(model.tokenizer.encode(w, add_special=False, parse_special=False)) for w in set(words)}
    ends = np.cumsum([n_tokens[w] for w in words])
    rng = np.random.default_rng(0)
    lengths = {
        "short": rng.integers(8, 25, n),
        "mixed": rng.permutation(np.linspace(8, 256, n).astype(int)),
    }
    sets: dict[str, list[str]] = {}
    for one, wanted in lengths.items():
        starts = rng.integers(1, len(words) - 300, n)
        stops = np.searchsorted(ends, ends[starts - 1] + wanted - 2, side="right")
        sets[one] = [" ".join(words[a : max(b, a + 1)]) for a, b in zip(starts, stops, strict=True)]
        found = [len(model.tokenizer.encode(t, parse_special=False)) for t in sets[one]]
        print(f"{one}: {min(found)} to {max(found)} tokens, {sum(found)} in all", file=sys.stderr)
    return sets


def commands(model: Path, options: argparse.Namespace) -> dict[str, list[str]]:
    """Ours, those that this environment has, and those given."""
    common = ["--model", str(model), "--threads", str(options.threads)]

    def python(program: str, *more: str) -> list[str]:
        return [sys.executable, str(HERE / "peers" / program), *common, *more]

    own = {
        TRUTH: python("embed_transformers.py"),
        "transformers bf16": python("embed_transformers.py", "--dtype", "bfloat16"),
        "sentence-transformers f32": python("embed_sentence_transformers.py"),
        "sentence-transformers bf16": python("embed_sentence_transformers.py", "--dtype", "bfloat16"),
    }
    chosen = own if options.only is None else {n: own[n] for n in options.only.split(",") if n}
    pairs = [peer.partition("=") for peer in options.peer]
    given = {name: shlex.split(c) if "--model" in c else [*shlex.split(c), *common] for name, _, c in pairs}
    return {OURS: python("embed_ours.py"), **chosen, **given}


def report(seconds: dict[str, Any], rows: dict[str, Any], lost: dict[str, str], options: argparse.Namespace) -> None:
    rates = {n: {s: options.n_texts / statistics.median(t[s]) for s in SETS} for n, t in seconds.items()}
    truth = rows.get(TRUTH, rows[OURS])
    cosine = {n: {s: float((r[s] * truth[s]).sum(1).min()) for s in SETS} for n, r in rows.items()}
    peers = {s: {n: r[s] for n, r in rates.items() if n != OURS} for s in SETS}
    ratios = {s: {n: rates[OURS][s] / rate for n, rate in peers[s].items()} for s in SETS}
    if options.json:
        told = {"texts_per_s": rates, "min_cosine": cosine, "ratios": ratios, "threads": options.threads, "lost": lost}
        print(json.dumps({**told, "rounds": options.rounds, "seconds": seconds}, indent=1))
        return
    print(
        f"{'texts/s, median of ' + str(options.rounds):30}"
        + "".join(f"{s:>10}{'ours /':>9}" for s in SETS)
        + "  min cosine"
    )
    for name, rate in rates.items():
        cells = "".join(f"{rate[s]:10.0f}{ratios[s].get(name, 1.0):9.2f}" for s in SETS)
        print(f"{name:30}{cells}{min(cosine[name].values()):12.5f}")
    for name, why in lost.items():
        print(f"{name:30}{why}")


if __name__ == "__main__":
    main()
