"""What every engine of `bench/embed.py` does: a program that answers lines on stdin. Standard library and NumPy.

    {"texts": [...], "rows": "file.npy" or null}   ->   {"seconds": 0.21}

and, with a file, the [n_texts, n_embd] vectors of length 1 in it. One process per engine, so that engines can take
turns text set by text set; a reply ends before the next engine is asked.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np

Embed = Callable[[list[str]], np.ndarray]


def serve(make: Callable[[argparse.Namespace], Embed]) -> None:
    """Runs until stdin ends. `make` gets --model, --threads and --dtype."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries print; answers have a stream of their own
    embed = make(options)
    for line in sys.stdin:
        asked = json.loads(line)
        started = perf_counter()
        rows = embed(asked["texts"])
        seconds = perf_counter() - started
        if asked.get("rows"):
            np.save(asked["rows"], np.asarray(rows, np.float32))
        print(json.dumps({"seconds": seconds}), file=answers, flush=True)
