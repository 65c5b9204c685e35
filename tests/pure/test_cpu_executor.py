"""Threads that run op records: every unit once, records in order, whoever else wants the cores."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numba import carray, cfunc, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from polyseq.backends.cpu.compiler.features import features
from polyseq.backends.cpu.threads.pool import Pool
from polyseq.backends.cpu.words import aligned
from polyseq.backends.cpu.words.records import RECORD_WORDS, STEP_WORDS, R, S
from polyseq.errors import CapabilityError

I64 = NDArray[np.int64]
N_MOST = 300
SRC, DST = R.OWN, R.OWN + 1


@intrinsic
def pointer(typing: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), build


def mix(record: int, step: int, u0: int, u1: int, scratch: int) -> None:
    """dst[u] = 3 * src[(7 u + 1) % n] + src[u] + u, through the thread's scratch."""
    words = carray(pointer(record), RECORD_WORDS, np.int64)
    n = carray(pointer(step), STEP_WORDS, np.int64)[S.N_TOKENS]
    src, dst = carray(pointer(words[SRC]), n, np.int64), carray(pointer(words[DST]), n, np.int64)
    own = carray(pointer(scratch), 1, np.int64)
    for u in range(u0, u1):
        own[0] = src[(7 * u + 1) % n]
        dst[u] = 3 * own[0] + src[u] + u


@pytest.fixture(scope="module")
def unit() -> Any:
    compile_: Any = cfunc
    return compile_(types.void(*[types.int64] * 5), nopython=True, error_model="numpy")(mix)


class Chain:
    """`n_records` records, each of which reads all that the one before wrote."""

    def __init__(self, unit: Any, n_records: int, *, max_chunk: int = 4) -> None:
        self.rows: I64 = aligned.zeros((n_records + 1, N_MOST), np.int64)
        self.rows[0] = np.arange(N_MOST)
        self.records: I64 = aligned.zeros((n_records, RECORD_WORDS), np.int64)
        for i, record in enumerate(self.records):
            record[R.UNIT] = unit.address
            record[R.COUNT_WORD], record[R.N_FIXED], record[R.PER_UNIT] = S.N_TOKENS, 1, 1
            record[R.MAX_CHUNK] = max_chunk
            record[SRC], record[DST] = aligned.address(self.rows[i]), aligned.address(self.rows[i + 1])

    def run(self, pool: Pool, n: int) -> I64:
        step = np.zeros(STEP_WORDS, np.int64)
        step[S.ONE], step[S.N_TOKENS] = 1, n
        self.rows[1:] = -1
        pool.run(self.records, step, scratch_bytes=64)
        assert (self.rows[1:, n:] == -1).all()
        return self.rows[-1, :n].copy()

    def expected(self, n: int) -> I64:
        row, u = np.arange(n), np.arange(n)
        for _ in self.records:
            row = 3 * row[(7 * u + 1) % n] + row + u
        return row


@pytest.fixture
def pool() -> Iterator[Callable[[int], Pool]]:
    made: list[Pool] = []

    def make(n_threads: int) -> Pool:
        made.append(Pool(n_threads, features()))
        return made[-1]

    yield make
    for p in made:
        p.close()


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5])
@pytest.mark.parametrize("max_chunk", [1, 7])
def test_every_unit_is_done_once_and_records_in_order(
    pool: Callable[[int], Pool], unit: Any, n_threads: int, max_chunk: int
) -> None:
    chain, p = Chain(unit, 40, max_chunk=max_chunk), pool(n_threads)
    for n in (1, 2, 3, 50, N_MOST, 1):
        assert np.array_equal(chain.run(p, n), chain.expected(n))


def test_open_records_are_all_done_before_the_one_that_needs_them(pool: Callable[[int], Pool], unit: Any) -> None:
    chain, p = Chain(unit, 12), pool(3)
    rows: I64 = aligned.zeros((12, N_MOST), np.int64)
    for i in range(12):  # three of four read the first row and write their own; the fourth reads the first of them
        record = chain.records[i]
        if i % 4 < 3:
            record[R.OPEN] = i % 4 < 2
            record[SRC], record[DST] = aligned.address(chain.rows[0]), aligned.address(rows[i])
        else:
            record[SRC], record[DST] = aligned.address(rows[i - 3]), aligned.address(rows[i])
    step = np.zeros(STEP_WORDS, np.int64)
    step[S.ONE], step[S.N_TOKENS] = 1, 200
    once, twice = Chain(unit, 1).expected(200), Chain(unit, 2).expected(200)
    for _ in range(200):
        rows[:] = -1
        p.run(chain.records, step, scratch_bytes=64)
        for i in range(12):
            assert np.array_equal(rows[i, :200], once if i % 4 < 3 else twice)


def test_units_that_depend_on_a_count_and_on_a_constant(pool: Callable[[int], Pool], unit: Any) -> None:
    chain, p = Chain(unit, 1), pool(2)
    chain.records[0, [R.N_FIXED, R.PER_UNIT]] = 3, 4  # 3 * ceil(18 / 4) = 15 units
    step = np.zeros(STEP_WORDS, np.int64)
    step[S.ONE], step[S.N_TOKENS] = 1, 18
    chain.rows[1] = -1
    p.run(chain.records, step, scratch_bytes=64)
    assert (chain.rows[1] != -1).sum() == 15
    chain.records[0, [R.COUNT_WORD, R.N_FIXED, R.PER_UNIT]] = S.ONE, 5, 1
    chain.rows[1] = -1
    p.run(chain.records, step, scratch_bytes=64)
    assert (chain.rows[1] != -1).sum() == 5


def test_a_job_without_records_or_without_units_ends(pool: Callable[[int], Pool], unit: Any) -> None:
    p = pool(2)
    chain = Chain(unit, 3)
    p.run(chain.records[:0], np.zeros(STEP_WORDS, np.int64))
    p.run(chain.records, np.zeros(STEP_WORDS, np.int64), scratch_bytes=64)  # n_tokens = 0


@pytest.mark.parametrize("n_threads", [2, 4])
@pytest.mark.usefixtures("busy_cores")
def test_thousands_of_random_steps_beside_busy_processes(
    pool: Callable[[int], Pool], unit: Any, n_threads: int
) -> None:
    rng, p = np.random.default_rng(n_threads), pool(n_threads)
    chains = [Chain(unit, n, max_chunk=c) for n, c in ((3, 1), (30, 4), (100, 2))]
    expected = [{n: chain.expected(n) for n in range(1, 40)} for chain in chains]
    deadline, n_steps = time.monotonic() + 6, 0
    while time.monotonic() < deadline and n_steps < 5000:
        i, n = int(rng.integers(3)), int(rng.integers(1, 40))
        assert np.array_equal(chains[i].run(p, n), expected[i][n])
        n_steps += 1
        if n_steps % 100 == 0:
            time.sleep(0.003)  # workers fall asleep
    assert n_steps > 200


def test_calls_from_several_threads_take_turns(pool: Callable[[int], Pool], unit: Any) -> None:
    p, failures = pool(2), list[str]()

    def many(seed: int) -> None:
        chain, rng = Chain(unit, 20), np.random.default_rng(seed)
        for n in rng.integers(1, N_MOST, 200):
            if not np.array_equal(chain.run(p, int(n)), chain.expected(int(n))):
                failures.append(f"seed {seed}, n {n}")

    threads = [threading.Thread(target=many, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_two_pools_share_the_cores(pool: Callable[[int], Pool], unit: Any) -> None:
    a, b, chain_a, chain_b = pool(2), pool(2), Chain(unit, 50), Chain(unit, 50)
    other = threading.Thread(target=lambda: [chain_b.run(b, 100) for _ in range(300)])
    other.start()
    for _ in range(300):
        assert np.array_equal(chain_a.run(a, 77), chain_a.expected(77))
    other.join()
    assert np.array_equal(chain_b.rows[-1, :100], chain_b.expected(100))


def own_threads() -> list[threading.Thread]:
    gc.collect()  # pools of other tests
    return [t for t in threading.enumerate() if t.name.startswith("polyseq-")]


def test_closing_ends_the_threads_and_further_calls_say_so(unit: Any) -> None:
    before = len(own_threads())
    p, chain = Pool(3, features()), Chain(unit, 5)
    chain.run(p, 9)
    assert len(own_threads()) == before + 2
    p.close()
    p.close()
    assert len(own_threads()) == before
    with pytest.raises(ValueError, match="closed"):
        chain.run(p, 9)


def test_a_dropped_pool_takes_its_threads_along(unit: Any) -> None:
    before = len(own_threads())
    p = Pool(3, features())
    Chain(unit, 5).run(p, 9)
    del p
    assert len(own_threads()) == before


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
def test_where_the_system_gives_too_few_threads_none_stays(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, start, n_left = len(own_threads()), threading.Thread.start, [3]

    def starting(thread: threading.Thread) -> None:
        if not n_left[0]:
            raise error
        n_left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    wanted = CapabilityError if isinstance(error, RuntimeError) else KeyboardInterrupt
    with pytest.raises(wanted) as refused:
        Pool(8, features())
    if isinstance(refused.value, CapabilityError):
        assert "gave this process 4 of n_threads=8 threads" in str(refused.value)
        assert refused.value.remedy == {"n_threads": 4}
    assert len(own_threads()) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_gets_threads_of_its_own(pool: Callable[[int], Pool], unit: Any) -> None:
    p, chain = pool(2), Chain(unit, 20)
    chain.run(p, 50)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        fine = np.array_equal(chain.run(p, 60), chain.expected(60)) and len(own_threads()) >= 1
        p.close()
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert np.array_equal(chain.run(p, 61), chain.expected(61))  # the parent's threads are as they were


IN_A_PROCESS = """
import ctypes, os, signal, sys, threading, time
import numpy as np
from polyseq.backends.cpu.compiler.features import features
from polyseq.backends.cpu.threads.pool import Pool
from polyseq.backends.cpu.words.records import STEP_WORDS
pool = Pool(3, features())
step, records = np.zeros(STEP_WORDS, np.int64), np.zeros((0, 32), np.int64)
pool.run(records, step)
"""


def in_a_process(body: str) -> subprocess.CompletedProcess[str]:
    code = IN_A_PROCESS + textwrap.dedent(body)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_the_interpreter_ends_cleanly_with_an_open_pool() -> None:
    ended = in_a_process("print('done')")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_the_interpreter_ends_cleanly_while_a_daemon_thread_computes() -> None:
    ended = in_a_process("""
        def forever():
            while True:
                pool.run(records, step)
        threading.Thread(target=forever, daemon=True).start()
        time.sleep(0.2)
    """)
    assert ended.returncode == 0, ended.stderr


def test_an_interrupt_leaves_the_pool_usable() -> None:
    ended = in_a_process("""
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            while True:
                pool.run(records, step)
        except KeyboardInterrupt:
            pool.run(records, step)
            print('usable')
    """)
    assert (ended.returncode, ended.stdout) == (0, "usable\n"), ended.stderr


def test_importing_the_pool_does_not_import_numba_once_compiled(unit: Any) -> None:
    ended = in_a_process("print('numba' in sys.modules)")
    assert ended.stdout == "False\n", ended.stderr


def test_a_pool_needs_a_thread() -> None:
    with pytest.raises(ValueError, match="n_threads is 0"):
        Pool(0, features())
