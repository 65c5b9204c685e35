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
from types import MappingProxyType

from polyseq.backends.cpu.compiler.assemble import object_code
from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.control import Values, Words, either, equal, larger, less, while_
from polyseq.backends.cpu.ir.emit import Body, Emit, Value
from polyseq.backends.cpu.threads.job import LINE, N_RING, WORD, H, J, N
from polyseq.backends.cpu.threads.sync import add, give_way, load, pause, sleep_while, store, wake
from polyseq.backends.cpu.words.records import RECORD_WORDS, R


def _run_records(e: Emit, job: Words, worker: Value) -> None:
    """Takes part in every record of a job until all is done."""
    records, counters, n_records, n_spin = map(job.get, (J.RECORDS, J.COUNTERS, J.N_RECORDS, J.N_SPIN))
    shares = _Shares(e, job, worker)

    def one(i: Value, carried: Values) -> Values:
        (first,) = carried
        record, line = e.add(records, e.mul(i, WORD * RECORD_WORDS)), _line(e, counters, i)
        n_units = Words(e, line).get(N.UNITS)

        def take() -> None:
            _report(e, line, shares.take(record, i, n_units), n_units)

        def wait() -> Values:
            behind = e.add(i, 1)
            e.each(e.b.sub(behind, first), lambda j: _wait(e, _line(e, counters, e.add(first, j)), n_spin))
            return [behind]

        e.when(less(e, load(e, e.add(line, WORD * N.DONE)), n_units), take)
        is_last = equal(e, e.add(i, 1), n_records)
        return either(e, e.b.or_(equal(e, Words(e, record).get(R.OPEN), 0), is_last), wait, lambda: [first])

    e.loop(n_records, [e.i64(0)], one)


class _Shares:
    """Units of a record, taken out of a thread's own share first and of the others' then."""

    def __init__(self, e: Emit, job: Words, worker: Value) -> None:
        self.e, self.worker = e, worker
        self.step, self.n_threads = job.get(J.STEP), job.get(J.N_THREADS)
        self.taken, self.taken_bytes = job.get(J.TAKEN), job.get(J.TAKEN_BYTES)
        self.scratch = e.add(job.get(J.SCRATCH), e.mul(worker, job.get(J.SCRATCH_BYTES)))

    def take(self, record: Value, i: Value, n_units: Value) -> Value:
        """Does units of record i as long as there are some; how many this thread did."""
        e, n_threads = self.e, self.n_threads
        # An eighth of a share at once, so that the last ones to finish differ by little.
        most = e.least(Words(e, record).get(R.MAX_CHUNK), e.b.udiv(n_units, e.mul(n_threads, 8)))
        chunk = larger(e, most, e.i64(1))

        def out_of_one(k: Value, carried: Values) -> Values:
            owner = e.b.urem(e.add(self.worker, k), n_threads)
            taken = e.add(e.add(self.taken, e.mul(owner, self.taken_bytes)), e.mul(i, WORD))
            start, stop = (e.b.udiv(e.mul(o, n_units), n_threads) for o in (owner, e.add(owner, 1)))
            some = less(e, load(e, taken), e.b.sub(stop, start))
            return either(
                e, some, lambda: [self._units(record, taken, start, stop, chunk, carried[0])], lambda: carried
            )

        return e.loop(n_threads, [e.i64(0)], out_of_one)[0]

    def _units(self, record: Value, taken: Value, start: Value, stop: Value, chunk: Value, n_done: Value) -> Value:
        """Does units of one share as long as there are some; n_done and how many these were."""
        e = self.e
        unit = Words(e, record).get(R.UNIT)

        def next_unit() -> Value:
            return e.add(start, add(e, taken, chunk))

        def do(values: Values) -> Values:
            u0, n = values
            u1 = e.least(e.add(u0, chunk), stop)
            n = e.add(n, e.b.sub(u1, u0))
            e.call(unit, record, self.step, u0, u1, self.scratch)
            return [next_unit(), n]

        return while_(e, [next_unit(), n_done], lambda values: less(e, values[0], stop), do)[1]


def _line(e: Emit, counters: Value, i: Value) -> Value:
    return e.add(counters, e.mul(i, LINE))


def _report(e: Emit, line: Value, n_done: Value, n_units: Value) -> None:
    done = e.add(line, WORD * N.DONE)

    def tell() -> None:
        all_done = less(e, e.b.sub(n_units, e.i64(1)), e.add(add(e, done, n_done), n_done))
        e.when(all_done, lambda: e.when(_above_0(e, load(e, e.add(line, WORD * N.SLEEPERS))), lambda: wake(e, done)))

    e.when(_above_0(e, n_done), tell)


def _wait(e: Emit, line: Value, n_spin: Value) -> None:
    n_units, done, sleepers = Words(e, line).get(N.UNITS), e.add(line, WORD * N.DONE), e.add(line, WORD * N.SLEEPERS)

    def look_again(values: Values) -> Values:
        pause(e)
        return [e.add(values[0], 1), load(e, done)]

    def goes_on(values: Values) -> Value:
        k, seen = values
        return e.b.and_(less(e, k, n_spin), less(e, seen, n_units))

    def sleep() -> None:
        add(e, sleepers, 1)  # before looking once more: who finishes the last unit looks for sleepers afterwards

        def again(values: Values) -> Values:
            sleep_while(e, done, values[0])
            return [load(e, done)]

        while_(e, [load(e, done)], lambda values: less(e, values[0], n_units), again)
        add(e, sleepers, -1)

    _, seen = while_(e, [e.i64(0), load(e, done)], goes_on, look_again)
    e.when(less(e, seen, n_units), sleep)


def _count_units(e: Emit, job: Words) -> None:
    """Clears the job's counters and says how many units each record has in this step."""
    records, counters, n_records = job.get(J.RECORDS), job.get(J.COUNTERS), job.get(J.N_RECORDS)
    taken, taken_bytes, step = job.get(J.TAKEN), job.get(J.TAKEN_BYTES), Words(e, job.get(J.STEP))

    def count(i: Value) -> None:
        record, line = Words(e, e.add(records, e.mul(i, WORD * RECORD_WORDS))), Words(e, _line(e, counters, i))
        n_rows, per_unit = step.get(record.get(R.COUNT_WORD)), record.get(R.PER_UNIT)
        line.put(N.DONE, 0)
        line.put(N.SLEEPERS, 0)
        n = e.b.udiv(e.add(n_rows, e.b.sub(per_unit, e.i64(1))), per_unit)
        line.put(N.UNITS, e.mul(record.get(R.N_FIXED), n))

    def clear(owner: Value) -> None:
        words = Words(e, e.add(taken, e.mul(owner, taken_bytes)))
        e.each(n_records, lambda i: words.put(i, 0))

    e.each(n_records, count)
    e.each(job.get(J.N_THREADS), clear)


def _run(e: Emit, head: Value) -> None:
    """The caller's part, as worker 0: publishes the job in the ring's next place, and works until it is done.

    Before it returns, the place after that is free: no worker is in the job that stood there.
    """
    generation_at = e.add(head, LINE * H.GENERATION)
    generation = e.add(load(e, generation_at), 1)
    job = _job(e, head, generation)
    _count_units(e, job)
    store(e, generation_at, generation)
    e.when(_above_0(e, load(e, e.add(head, LINE * H.SLEEPERS))), lambda: wake(e, generation_at))
    _run_records(e, job, e.i64(0))
    oldest, n_spin = e.add(generation, 1 - N_RING), job.get(J.N_SPIN)

    def wait_for(i: Value) -> None:
        hazard = _hazard(e, head, e.add(i, 1))

        def inside(values: Values) -> Value:
            return e.b.and_(_above_0(e, values[1]), e.b.icmp_signed("<=", values[1], oldest))

        def look_again(values: Values) -> Values:
            k = e.add(values[0], 1)

            def soon() -> Values:
                pause(e)
                return []

            def late() -> Values:
                give_way(e)
                return []

            either(e, less(e, k, n_spin), soon, late)
            return [k, load(e, hazard)]

        while_(e, [e.i64(0), load(e, hazard)], inside, look_again)

    e.each(e.b.sub(job.get(J.N_THREADS), e.i64(1)), wait_for)


def _work(e: Emit, head: Value, worker: Value, n_idle_spin: Value) -> None:
    """A worker's life: waits for a generation newer than the last it saw, runs that job, until told to stop."""
    hazard = _hazard(e, head, worker)

    def next_job(last: Value) -> Values:
        _wait_for_job(e, head, last, n_idle_spin)
        return [_enter(e, head, hazard)]

    def do(values: Values) -> Values:
        _run_records(e, _job(e, head, values[0]), worker)
        store(e, hazard, 0)
        return next_job(values[0])

    while_(e, next_job(e.i64(0)), lambda _: equal(e, load(e, e.add(head, LINE * H.STOP)), 0), do)
    store(e, hazard, 0)


def _job(e: Emit, head: Value, generation: Value) -> Words:
    """The job of a generation, at its place in the ring."""
    ring = Words(e, e.add(head, LINE * H.RING))
    return Words(e, ring.get(e.b.urem(generation, e.i64(N_RING))))


def _hazard(e: Emit, head: Value, worker: Value) -> Value:
    """Address of a worker's own word."""
    return e.add(head, e.mul(e.add(worker, H.HAZARDS), LINE))


def _wait_for_job(e: Emit, head: Value, last: Value, n_idle_spin: Value) -> None:
    generation, sleepers = e.add(head, LINE * H.GENERATION), e.add(head, LINE * H.SLEEPERS)

    def goes_on(values: Values) -> Value:
        return e.b.and_(less(e, values[0], n_idle_spin), equal(e, load(e, generation), last))

    def look_again(values: Values) -> Values:
        pause(e)
        return [e.add(values[0], 1)]

    def sleep(_: Values) -> Values:
        sleep_while(e, generation, last)
        return []

    while_(e, [e.i64(0)], goes_on, look_again)
    add(e, sleepers, 1)
    while_(e, [], lambda _: equal(e, load(e, generation), last), sleep)
    add(e, sleepers, -1)


def _enter(e: Emit, head: Value, hazard: Value) -> Value:
    """Says which job this worker is in, then looks again whether that is still the newest."""
    generation = e.add(head, LINE * H.GENERATION)

    def say() -> Values:
        newest = load(e, generation)
        store(e, hazard, newest)
        return [newest]

    return while_(e, say(), lambda said: e.b.not_(equal(e, load(e, generation), said[0])), lambda _: say())[0]


def _above_0(e: Emit, value: Value) -> Value:
    return less(e, e.i64(0), value)


def _stop(e: Emit, head: Value) -> None:
    """Tells all workers to leave."""
    generation = e.add(head, LINE * H.GENERATION)
    store(e, e.add(head, LINE * H.STOP), 1)
    add(e, generation, 1)
    wake(e, generation)


def _kernel(body: Body, n_args: int, name: str) -> Callable[[Features], ObjectCode]:
    return lambda features: object_code(body, n_args, f"executor_{name}", features)


KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType(
    {"run": _kernel(_run, 1, "run"), "work": _kernel(_work, 3, "work"), "stop": _kernel(_stop, 1, "stop")}
)
