"""The compiled interpreter of op records: one function runs every plan, in every thread.

Enters: addresses only. A *job* names a plan's records, this run's step words, counters and scratch. Leaves: all units
of all records done, in record order. It knows no op: a record holds its unit function's address.

Each thread has an even share of a record's units, one after another, so that it walks through one stretch of the
weights; when it has no more it takes units out of the others' shares. A share is handed out by an atomic counter.

Per record one line of counters, `[done, sleepers, n_units]`. A thread that finds no more units waits until all
units are *done*, not until all threads have come by: a thread that the system has put aside while it holds no unit
holds nobody up. Waiting spins a little, then sleeps (`futex(2)`).

Jobs lie in a ring. A worker that was put aside may still be falling through a finished job when the next one runs; it
says in its own word which job it is in, and a place in the ring is used again only when nobody is in there any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.numba_build import part
from polyseq.backends.cpu.threads.job import LINE, N_RING, WORD, H, J, N
from polyseq.backends.cpu.threads.sync import (
    add,
    call_unit,
    give_way,
    load,
    pause,
    peek,
    poke,
    sleep_while,
    store,
    wake,
)
from polyseq.backends.cpu.words.records import RECORD_WORDS, R


@part
def run_records(job: int, worker: int) -> None:
    """Takes part in every record of a job until all is done."""
    records, counters, step = peek(job + WORD * J.RECORDS), peek(job + WORD * J.COUNTERS), peek(job + WORD * J.STEP)
    n_threads, n_spin = peek(job + WORD * J.N_THREADS), peek(job + WORD * J.N_SPIN)
    scratch = peek(job + WORD * J.SCRATCH) + worker * peek(job + WORD * J.SCRATCH_BYTES)
    n_records, first = peek(job + WORD * J.N_RECORDS), 0
    for i in range(n_records):
        record, line = records + WORD * RECORD_WORDS * i, counters + LINE * i
        n_units = peek(line + WORD * N.UNITS)
        if load(line + WORD * N.DONE) < n_units:
            n_done = 0
            for k in range(n_threads):
                owner = (worker + k) % n_threads
                taken = peek(job + WORD * J.TAKEN) + owner * peek(job + WORD * J.TAKEN_BYTES) + WORD * i
                start, stop = owner * n_units // n_threads, (owner + 1) * n_units // n_threads
                if load(taken) < stop - start:
                    n_done += _take_units(record, taken, start, stop, _chunk(record, n_units, n_threads), step, scratch)
            _report(line, n_done, n_units)
        if peek(record + WORD * R.OPEN) == 0 or i == n_records - 1:
            for j in range(first, i + 1):
                _wait(counters + LINE * j, n_spin)
            first = i + 1


@part
def _chunk(record: int, n_units: int, n_threads: int) -> int:
    """Units that a thread takes at once: an eighth of its share, so that the last ones to finish differ by little."""
    return max(1, min(peek(record + WORD * R.MAX_CHUNK), n_units // (8 * n_threads)))


@part
def _take_units(record: int, taken: int, start: int, stop: int, chunk: int, step: int, scratch: int) -> int:
    """Does units of a share as long as there are some; how many this thread did."""
    unit = peek(record + WORD * R.UNIT)
    n_done = 0
    u0 = start + add(taken, chunk)
    while u0 < stop:
        u1 = min(u0 + chunk, stop)
        call_unit(unit, record, step, u0, u1, scratch)
        n_done += u1 - u0
        u0 = start + add(taken, chunk)
    return n_done


@part
def _report(line: int, n_done: int, n_units: int) -> None:
    done = line + WORD * N.DONE
    if n_done > 0 and add(done, n_done) + n_done >= n_units and load(line + WORD * N.SLEEPERS) > 0:
        wake(done)


@part
def _wait(line: int, n_spin: int) -> None:
    n_units, done, sleepers = peek(line + WORD * N.UNITS), line + WORD * N.DONE, line + WORD * N.SLEEPERS
    for _ in range(n_spin):
        if load(done) >= n_units:
            return
        pause()
    add(sleepers, 1)  # before looking once more: who finishes the last unit looks for sleepers afterwards
    seen = load(done)
    while seen < n_units:
        sleep_while(done, seen)
        seen = load(done)
    add(sleepers, -1)


@part
def _count_units(job: int) -> None:
    """Clears the job's counters and says how many units each record has in this step."""
    records, counters, step = peek(job + WORD * J.RECORDS), peek(job + WORD * J.COUNTERS), peek(job + WORD * J.STEP)
    for i in range(peek(job + WORD * J.N_RECORDS)):
        record, line = records + WORD * RECORD_WORDS * i, counters + LINE * i
        n_rows, per_unit = peek(step + WORD * peek(record + WORD * R.COUNT_WORD)), peek(record + WORD * R.PER_UNIT)
        poke(line + WORD * N.DONE, 0)
        poke(line + WORD * N.SLEEPERS, 0)
        poke(line + WORD * N.UNITS, peek(record + WORD * R.N_FIXED) * ((n_rows + per_unit - 1) // per_unit))
    for owner in range(peek(job + WORD * J.N_THREADS)):
        taken = peek(job + WORD * J.TAKEN) + owner * peek(job + WORD * J.TAKEN_BYTES)
        for i in range(peek(job + WORD * J.N_RECORDS)):
            poke(taken + WORD * i, 0)


def _run(head: int) -> None:
    """The caller's part, as worker 0: publishes the job in the ring's next place, and works until it is done.

    Before it returns, the place after that is free: no worker is in the job that stood there.
    """
    generation = load(head + LINE * H.GENERATION) + 1
    job = peek(head + LINE * H.RING + WORD * (generation % N_RING))
    _count_units(job)
    store(head + LINE * H.GENERATION, generation)
    if load(head + LINE * H.SLEEPERS) > 0:
        wake(head + LINE * H.GENERATION)
    run_records(job, 0)
    oldest = generation + 1 - N_RING
    n_spin = peek(job + WORD * J.N_SPIN)
    for worker in range(1, peek(job + WORD * J.N_THREADS)):
        k = 0
        inside = load(head + _hazard(worker))
        while 0 < inside <= oldest:
            k += 1
            if k < n_spin:
                pause()
            else:
                give_way()
            inside = load(head + _hazard(worker))


def _work(head: int, worker: int, n_idle_spin: int) -> None:
    """A worker's life: waits for a generation newer than the last it saw, runs that job, until told to stop."""
    last = 0
    while True:
        _wait_for_job(head, last, n_idle_spin)
        last = _enter(head, worker)
        if load(head + LINE * H.STOP) > 0:
            break
        run_records(peek(head + LINE * H.RING + WORD * (last % N_RING)), worker)
        store(head + _hazard(worker), 0)
    store(head + _hazard(worker), 0)


@part
def _hazard(worker: int) -> int:
    """Offset of a worker's own word."""
    return LINE * (H.HAZARDS + worker)


@part
def _wait_for_job(head: int, last: int, n_idle_spin: int) -> None:
    generation, sleepers = head + LINE * H.GENERATION, head + LINE * H.SLEEPERS
    k = 0
    while k < n_idle_spin and load(generation) == last:
        pause()
        k += 1
    add(sleepers, 1)
    while load(generation) == last:
        sleep_while(generation, last)
    add(sleepers, -1)


@part
def _enter(head: int, worker: int) -> int:
    """Says which job this worker is in, then looks again whether that is still the newest."""
    while True:
        newest = load(head + LINE * H.GENERATION)
        store(head + _hazard(worker), newest)
        if load(head + LINE * H.GENERATION) == newest:
            return newest


def _stop(head: int) -> None:
    """Tells all workers to leave."""
    store(head + LINE * H.STOP, 1)
    add(head + LINE * H.GENERATION, 1)
    wake(head + LINE * H.GENERATION)


KERNELS: Mapping[str, Callable[[Features], Callable[..., None]]] = {
    "run": lambda _: _run,
    "work": lambda _: _work,
    "stop": lambda _: _stop,
}
