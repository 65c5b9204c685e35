"""Contexts of one model in several threads, and in a fork's child: what they share is made once and stays where it is.

Nobody waits for a thread that is not there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from polyseq.backends.cpu.plan import weights as kept
from polyseq.backends.cpu.plan.weights import PackedWeights
from polyseq.backends.cpu.rows import turns
from polyseq.context import Context
from polyseq.errors import ForkedMidway
from polyseq.graph.ops import RopeParams
from polyseq.lazy import lazy
from polyseq.weights import ArrayWeights
from tiny import tiny_llama

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

    def slowly(*given: Any, **more: Any) -> Any:
        made = make(*given, **more)
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

n, folder = [], compile.code_dirs
def slowly():
    n.append(1)
    time.sleep(0.1)
    return folder()
compile.code_dirs = slowly
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


class Slow:
    """An attribute that takes as long to make as its object says."""

    def __init__(self, wait: Callable[[], Any]) -> None:
        self.wait, self.n_made = wait, 0

    @lazy
    def made(self) -> list[int]:
        self.n_made += 1
        self.wait()
        return [self.n_made]


def test_who_makes_an_attribute_waits_for_no_other_object() -> None:
    begun, may_end = threading.Event(), threading.Event()
    slow, quick = Slow(lambda: begun.set() or may_end.wait(20)), Slow(lambda: None)
    thread = threading.Thread(target=lambda: slow.made)
    thread.start()
    assert begun.wait(20)
    mine: list[list[int]] = []
    other = threading.Thread(target=lambda: mine.append(quick.made), daemon=True)
    other.start()
    other.join(10)
    may_end.set()
    thread.join()
    assert mine == [[1]] and quick.made is mine[0] and quick.n_made == 1
    assert slow.made is slow.made


# ---- a process is forked while another thread computes -------------------------------------------------


def logits(ctx: Context) -> list[list[float]]:
    batch = ctx.batch()
    batch.extend(np.arange(1, 20), seq=0, output=True)
    rows: list[list[float]] = ctx.decode(batch).all_logits().tolist()
    ctx.memory.rm(0)
    return rows


def in_a_child(act: Callable[[], bool]) -> bool:
    """Whether `act` is true in a fork's child, in time."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            os._exit(0 if act() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def refused(act: Callable[[], Any]) -> bool:
    try:
        act()
    except ForkedMidway as error:
        return "another thread was computing" in str(error)
    return False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_child_does_not_wait_for_a_thread_of_its_parent(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama().model
    busy, idle = (Context(model, n_ctx=64, backend=backend) for _ in range(2))
    wanted = logits(busy)
    inside, may_end, found = threading.Event(), threading.Event(), list[Any]()
    run = busy._compute.ubatch

    def held(*args: Any) -> None:
        inside.set()
        assert may_end.wait(60)
        run(*args)

    with monkeypatch.context() as patch:
        patch.setattr(busy._compute, "ubatch", held)
        thread = threading.Thread(target=lambda: found.append(logits(busy)))
        thread.start()
        assert inside.wait(20)
        assert in_a_child(lambda: refused(lambda: logits(busy)) and refused(lambda: busy.memory.rm(0)))
        assert in_a_child(lambda: logits(idle) == wanted and logits(idle) == wanted)
        assert in_a_child(lambda: logits(Context(model, n_ctx=64, backend=backend)) == wanted)
        may_end.set()
        thread.join()
    assert found == [wanted] and logits(busy) == wanted


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("decoded_before", [False, True])
def test_a_child_goes_on_with_its_parent_s_context(backend: str, decoded_before: bool) -> None:
    model = tiny_llama().model
    wanted, ctx = logits(Context(model, n_ctx=64, backend=backend)), Context(model, n_ctx=64, backend=backend)
    if decoded_before:
        logits(ctx)
    assert in_a_child(lambda: logits(ctx) == wanted and in_a_child(lambda: logits(ctx) == wanted))
    assert logits(ctx) == wanted
