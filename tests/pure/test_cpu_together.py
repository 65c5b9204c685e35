"""Contexts of one model in several threads: what they share is made once, and stays where records say it is."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from polyseq.backends.cpu.plan import weights as kept
from polyseq.backends.cpu.plan.weights import PackedWeights
from polyseq.backends.cpu.rows import turns
from polyseq.graph.ops import RopeParams
from polyseq.weights import ArrayWeights

PARAMS = RopeParams(16, 10000.0)
ASKED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "panels": ("pack", ("w",)),
    "vector": ("zeros", ("v",)),
    "array": ("np.ascontiguousarray", ("w",)),
    "turns": ("Turns", (PARAMS, None)),
}


@pytest.mark.parametrize("what", ASKED)
def test_what_two_threads_pack_at_once_is_kept_once(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of the first to end hold addresses: what the other made later must not take its place."""
    packed = PackedWeights(ArrayWeights({"w": np.ones((16, 32), np.float32), "v": np.ones(16, np.float32)}))
    made_by, args = ASKED[what]
    make, begun, may_end = getattr(kept, made_by, None) or np.ascontiguousarray, threading.Event(), threading.Event()

    def slowly(*given: Any) -> Any:
        made = make(*given)
        if what == "array":
            made = made.copy()  # as dequantising makes it
        if threading.current_thread() is other:
            begun.set()
            assert may_end.wait(20)
        return made

    monkeypatch.setattr(f"{kept.__name__}.{made_by}", slowly)
    found: list[Any] = []
    other = threading.Thread(target=lambda: found.append(getattr(packed, what)(*args)))
    other.start()
    assert begun.wait(20)
    first = getattr(packed, what)(*args)
    may_end.set()
    other.join()
    assert found[0] is first and getattr(packed, what)(*args) is first


@pytest.mark.parametrize(("mine", "theirs"), [(10, 1030), (1030, 10), (600, 600)])
def test_turns_that_two_threads_compute_at_once(mine: int, theirs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def at(table: turns.Turns, *pos: int) -> list[list[float]]:
        return table.rows(np.array(pos, np.int32)).tolist()

    wanted = at(turns.Turns(PARAMS, None), 0, mine, theirs)
    table, compute = turns.Turns(PARAMS, None), turns.turns

    def interrupted(*given: Any) -> Any:
        monkeypatch.setattr(turns, "turns", compute)
        at(table, theirs)
        return compute(*given)

    monkeypatch.setattr(turns, "turns", interrupted)
    at(table, mine)
    assert at(table, 0, mine, theirs) == wanted


LOADS = """
import threading, time
from polyseq.backends.cpu.compiler import compile
from polyseq.backends.cpu.compiler.features import features

n, folder = [], compile.code_dir
def slowly():
    n.append(1)
    time.sleep(0.1)
    return folder()
compile.code_dir = slowly
threads = [threading.Thread(target=compile.function, args=("threads.executor.stop", features())) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(n))
"""


def test_code_is_loaded_into_a_process_once() -> None:
    """Two loaders would mean that one is dropped, with code that is in use."""
    done = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "1\n"
