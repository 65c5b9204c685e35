"""Any history of calls, for every kind of memory, against the plainest memory there can be (`naive.py`).

Random decodes, failed and aborted ones, sequence operations, saving and restoring; after each the same ranges, and
of every decode the same logits as computing the whole sequence from scratch. `--n-histories` and `--n-steps` make it
longer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from naive import Entry, Naive
from on_backend import backend_under_test, exact
from polyseq import Context, Model, NoSlot
from polyseq.errors import Aborted, CoupledSequences, PartlyDecoded, PolyseqWarning, SavedStateError, SequenceError
from polyseq.memory import window_pair
from tiny import tiny_llama
from tiny_kinds import N_VOCAB, tiny_gemma3, tiny_lfm2, tiny_mamba

N_SEQS, N_CTX_SEQ, N_SWA = 3, 24, 4
TOLERANCE = 1e-4
SEQ = st.integers(0, N_SEQS - 1)
COUNTS = st.tuples(*[st.integers(0, 6)] * N_SEQS)
SEED = st.integers(0, 999)


@dataclass(frozen=True)
class Kind:
    """A memory and what may be asked of it so that computing from scratch is the truth."""

    model: Model
    unified: bool
    # With one layer K and V depend on their own token alone: ranges may go from anywhere, and what stays is as if new.
    any_range: bool = False
    n_swa: int = 0
    # A running state can go back only to positions after which it was kept; None: there is none.
    n_rs_seq: int | None = None
    streams_of_states: bool = False  # nothing but states: `keep` reaches them all

    @property
    def has_state(self) -> bool:
        return self.n_rs_seq is not None


ONE_LAYER, DEEP, WINDOW = tiny_llama(n_layer=1).model, tiny_llama().model, tiny_gemma3(n_swa=N_SWA).model
MAMBA, LFM2 = tiny_mamba().model, tiny_lfm2().model
KINDS = {
    "unified": Kind(ONE_LAYER, unified=True, any_range=True),
    "streams": Kind(ONE_LAYER, unified=False, any_range=True),
    "unified, two layers": Kind(DEEP, unified=True),
    "streams, two layers": Kind(DEEP, unified=False),
    "window, unified": Kind(WINDOW, unified=True, n_swa=N_SWA),
    "window, streams": Kind(WINDOW, unified=False, n_swa=N_SWA),
    "recurrent": Kind(MAMBA, unified=False, n_rs_seq=0, streams_of_states=True),
    "recurrent, snapshots": Kind(MAMBA, unified=False, n_rs_seq=2, streams_of_states=True),
    "hybrid, unified": Kind(LFM2, unified=True, n_rs_seq=0),
    "hybrid, streams": Kind(LFM2, unified=False, n_rs_seq=0),
    "hybrid, unified, snapshots": Kind(LFM2, unified=True, n_rs_seq=3),
    "hybrid, streams, snapshots": Kind(LFM2, unified=False, n_rs_seq=3),
}


class Boom(Exception):
    """What a test makes go wrong."""


class History(RuleBasedStateMachine):
    """One context and its naive twin."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.naive = Naive(kind.model, N_SEQS)
        self.kept: list[set[int]] = [set() for _ in range(N_SEQS)]  # positions that a state can go back to
        self.saved: list[tuple[bytes, list[Entry], set[int]]] = []

    @initialize(n_more=st.integers(1, 7), on_error=st.sampled_from(["undo", "keep_finished"]))
    def start(self, n_more: int, on_error: Any) -> None:
        self.on_error = on_error
        self.move_into(n_more, N_CTX_SEQ)

    def move_into(self, n_more: int, n_ctx_seq: int) -> None:
        """An empty context; `n_more` rows in an ubatch beyond what the kind needs at least."""
        n_rs_seq = self.kind.n_rs_seq or 0
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            patch.setattr(window_pair, "WINDOW_PAD", 1)  # a window of just the cells it needs
            warnings.simplefilter("ignore", PolyseqWarning)
            self.ctx = exact(
                self.kind.model,
                n_ctx=N_SEQS * n_ctx_seq,
                n_seq_max=N_SEQS,
                n_ubatch=n_more + (1 + n_rs_seq if n_rs_seq else 0),
                n_rs_seq=n_rs_seq,
                unified=self.kind.unified,
                on_error=self.on_error,
            )
        self.memory = self.ctx.memory

    # ---- calls -----------------------------------------------------------------------------------------

    @rule(counts=COUNTS, turns=st.booleans(), seed=SEED)
    def decode(self, counts: tuple[int, ...], turns: bool, seed: int) -> None:
        self.call(self.rows(counts, seed), turns=turns)

    @rule(counts=COUNTS, seed=SEED, at=st.integers(1, 5), how=st.sampled_from(["error", "abort"]))
    def decode_that_fails(self, counts: tuple[int, ...], seed: int, at: int, how: str) -> None:
        with failing(self.ctx, at, self.ctx.abort if how == "abort" else boom):
            self.call(self.rows(counts, seed))

    @precondition(lambda self: self.kind.unified)
    @rule(s=SEQ, t=SEQ, n=st.integers(1, 4), seed=SEED)
    def decode_shared_rows(self, s: int, t: int, n: int, seed: int) -> None:
        """Rows of two sequences at once, where these hold the same."""
        held = [sorted((a.pos, a.token) for a in self.naive.seqs[q]) for q in (s, t)]
        alike = self.naive.range(s) == self.naive.range(t) if self.kind.any_range else held[0] == held[1]
        if s == t or not alike:
            return
        shared = self.naive.append(s, np.random.default_rng(seed).integers(0, N_VOCAB, n).tolist())
        self.call({(min(s, t), max(s, t)): shared})

    def rows(self, counts: tuple[int, ...], seed: int) -> dict[tuple[int, ...], list[Entry]]:
        rng = np.random.default_rng(seed)
        tokens = [rng.integers(0, N_VOCAB, n).tolist() for n in counts]
        return {(s,): self.naive.append(s, ids) for s, ids in enumerate(tokens) if ids}

    def call(self, rows: dict[tuple[int, ...], list[Entry]], *, turns: bool = False) -> None:
        """One decode, which succeeds with the right logits or changes nothing."""
        if not rows:
            return
        flat = [(seqs, a) for seqs, entries in rows.items() for a in entries]
        if turns:
            in_turn = zip_longest(*[[(seqs, a) for a in entries] for seqs, entries in rows.items()])
            flat = [row for one in in_turn for row in one if row is not None]
        batch = self.ctx.batch()
        for seqs, a in flat:
            batch.extend([a.token], seq=set(seqs), pos=[a.pos], output=True)
        before = self.state()
        try:
            outputs = self.ctx.decode(batch)
        except PartlyDecoded as partly:
            assert self.ctx.on_error == "keep_finished" and partly.kept
            for seqs, entries in rows.items():
                self.hold(seqs, [a for a in entries if a.pos <= partly.kept.get(seqs[0], (-1, -1))[1]], of=entries)
            return
        except (NoSlot, Boom, Aborted, CoupledSequences) as error:
            assert self.state() == before
            if isinstance(error, CoupledSequences):  # equal states that do not come from one another
                assert self.kind.has_state and any(len(seqs) > 1 for seqs in rows)
            return
        logits = outputs.all_logits()
        for seqs, entries in rows.items():
            wanted = self.naive.logits(seqs[0], entries)
            found = logits[[i for i, (owners, _) in enumerate(flat) if owners == seqs]]
            assert np.abs(found - wanted).max() < TOLERANCE
        for seqs, entries in rows.items():
            self.hold(seqs, entries, of=entries)
        self.holds_what_comes_next()

    def hold(self, seqs: tuple[int, ...], entries: list[Entry], *, of: list[Entry]) -> None:
        """These rows of a call are in memory; states to go back to are kept at its end only."""
        for s in seqs if entries else ():
            self.naive.seqs[s] += entries
            last = entries[-1].pos
            n_back = (self.kind.n_rs_seq or 0) if entries == of else 0
            self.kept[s] = {p for p in self.kept[s] | {a.pos for a in entries} if p >= last - n_back}

    def state(self) -> dict[str, bytes]:
        """All metadata, once what is pending has been carried out: that a refused call does too."""
        self.ctx._dues.settle()
        return self.memory.columns()

    @rule()
    def poison(self) -> None:
        """Whatever is in cells that nobody holds, it cannot matter."""
        self.ctx._dues.settle()
        streams = iter(self.memory.map().streams)
        for part in self.memory.parts:
            for stream in range(part.n_stream):
                runs = next(streams).runs
                unused = np.array([r.first + i for r in runs if not r.seq_ids for i in range(r.count)], np.intp)
                rows = self.ctx._cache.read(part.name, stream, unused)
                nan = {name: np.full_like(a, np.nan if a.dtype == np.float32 else 0) for name, a in rows.items()}
                self.ctx._cache.write(part.name, stream, unused, nan)

    # ---- sequence operations ---------------------------------------------------------------------------

    @rule(s=st.integers(-1, N_SEQS - 1), p0=st.integers(-1, 20), n=st.integers(-1, 8))
    def rm(self, s: int, p0: int, n: int) -> None:
        p1 = max(p0, 0) + n if (self.kind.any_range or self.kind.has_state) and n >= 0 else -1
        seqs = range(N_SEQS) if s < 0 else (s,)
        if not all(self.can_be_left(q, self.naive.within(q, p0, p1)) for q in seqs):
            self.refused(lambda: self.memory.rm(s, p0, p1))
            return
        assert self.memory.rm(s, p0, p1)
        for q in seqs:
            self.naive.rm(q, p0, p1)
            self.kept[q] &= {a.pos for a in self.naive.seqs[q]}
            self.give_up_if_lost(q)

    def can_be_left(self, s: int, leaving: list[Entry]) -> bool:
        """Whether the state of s is known without these entries."""
        if not self.kind.has_state or not leaving or len(leaving) == len(self.naive.seqs[s]):
            return True
        return leaving[-1] is self.naive.seqs[s][-1] and leaving[0].pos - 1 in self.kept[s]

    def refused(self, operation: Callable[[], object]) -> None:
        before = self.memory.columns()
        with pytest.raises(SequenceError):
            operation()
        assert self.memory.columns() == before

    @rule(s=SEQ, t=SEQ, p0=st.integers(-1, 9), n=st.integers(-1, 9))
    def cp(self, s: int, t: int, p0: int, n: int) -> None:
        """In one stream dst joins the cells, of a part too; between streams it becomes a copy of the whole."""
        if self.kind.has_state:
            self.cp_state(s, t, max(p0, 0) + n if n >= 0 else -1)
        elif not self.kind.unified:
            self.memory.cp(s, t)
            self.naive.copy(s, t)
        elif self.kind.any_range:
            p1 = max(p0, 0) + n if n >= 0 else -1
            self.memory.cp(s, t, p0, p1)
            if s != t:
                self.naive.share(s, t, p0, p1)
        elif not self.naive.seqs[t]:
            self.memory.cp(s, t)
            self.naive.share(s, t)

    def cp_state(self, s: int, t: int, p1: int) -> None:
        """dst becomes a copy of src, up to a position that src can go back to."""
        left_out = self.naive.within(s, p1, -1) if p1 >= 0 else []
        if left_out and (not self.kind.unified or not self.can_be_left(s, left_out)):
            return
        self.memory.cp(s, t, -1, p1)
        if s == t or len(left_out) == len(self.naive.seqs[s]):  # nothing to copy
            return
        if self.kind.unified:
            self.naive.seqs[t] = []
            self.naive.share(s, t, 0, p1)
        else:
            self.naive.copy(s, t)
        self.kept[t] = self.kept[s] & {a.pos for a in self.naive.seqs[t]}

    @rule(s=SEQ)
    def keep(self, s: int) -> None:
        self.memory.keep(s)
        for t in range(N_SEQS):
            if (self.kind.unified or self.kind.streams_of_states) and t != s:
                self.naive.rm(t)
                self.kept[t] = set()

    @rule(s=SEQ, p0=st.integers(-1, 9), n=st.integers(-1, 9), delta=st.integers(-4, 6))
    def add(self, s: int, p0: int, n: int, delta: int) -> None:
        if self.kind.any_range:
            p1 = max(p0, 0) + n if n >= 0 else -1
        else:
            p0, p1 = -1, -1
            moved = set(self.naive.seqs[s])
            torn = any(moved & set(other) and not set(other) <= moved for other in self.naive.seqs)
            if moved and self.naive.range(s)[0] + delta < 0:
                return
            if torn and self.kind.has_state and delta:
                self.refused(lambda: self.memory.add(s, p0, p1, delta))
            if torn:
                return
            self.kept = [
                {p + delta for p in k} if moved & set(e) else k for k, e in zip(self.kept, self.naive.seqs, strict=True)
            ]
        self.memory.add(s, p0, p1, delta)
        self.naive.add(s, p0, p1, delta)

    @rule()
    def clear(self) -> None:
        self.memory.clear()
        self.naive.seqs = [[] for _ in range(N_SEQS)]
        self.kept = [set() for _ in range(N_SEQS)]

    # ---- elsewhere and back ----------------------------------------------------------------------------

    @rule(s=SEQ)
    def save(self, s: int) -> None:
        copies = [Entry(a.pos, a.token) for a in self.naive.seqs[s]]
        self.saved.append((self.ctx.save(s), copies, set(self.kept[s])))

    @precondition(lambda self: self.saved)
    @rule(t=SEQ, i=st.integers(0, 99), cut=st.sampled_from([0, 0, 0, 1]))
    def restore(self, t: int, i: int, cut: int) -> None:
        """Into cells that may be scattered, under any id; a blob that lacks its end is refused."""
        blob, entries, kept = self.saved[i % len(self.saved)]
        before = self.state()
        if cut:
            with pytest.raises(SavedStateError):
                self.ctx.restore(blob[:-1], t)
            assert self.state() == before
        elif entries and not self.naive.seqs[t]:
            try:
                self.ctx.restore(blob, t)
            except NoSlot:
                assert self.state() == before
                return
            self.naive.seqs[t] = [Entry(a.pos, a.token) for a in entries]
            self.kept[t] = set(kept)
            self.holds_what_comes_next()

    @rule(n_more=st.integers(1, 7), n_extra=st.integers(0, 5))
    def move_house(self, n_more: int, n_extra: int) -> None:
        """Everything goes into a context of other sizes, or stays where it was if that has less room."""
        before, blob = self.ctx, self.ctx.save()
        self.move_into(n_more, N_CTX_SEQ + n_extra)
        try:
            self.ctx.restore(blob)
        except NoSlot:
            assert self.ctx.n_ctx < before.n_ctx
            self.ctx, self.memory = before, before.memory
        self.holds_what_comes_next()

    @rule()
    def optimize(self) -> None:
        self.ctx.optimize()

    # ---- what must hold --------------------------------------------------------------------------------

    def first_needed(self, s: int) -> int:
        """The smallest position that the next row of s sees."""
        lo, hi = self.naive.range(s)
        return max(lo, hi + 2 - self.kind.n_swa) if self.kind.n_swa else lo

    def give_up_if_lost(self, s: int) -> None:
        """Going back further than a window reaches leaves a sequence that is refused from then on: it goes whole."""
        held = self.memory.pos_min(s), self.memory.pos_max(s)
        if self.kind.n_swa and (held[0] > self.first_needed(s) or held[1] != self.naive.range(s)[1]):
            batch = self.ctx.batch()
            batch.add(1, seq=s)
            self.refused(lambda: self.ctx.plan(batch))
            self.memory.rm(s)
            self.naive.rm(s)

    def holds_what_comes_next(self) -> None:
        for s in range(N_SEQS):
            assert self.kind.has_state or -1 <= self.memory.pos_min(s) <= self.first_needed(s)

    @invariant()
    def same_ranges(self) -> None:
        if not hasattr(self, "memory"):
            return
        self.memory.check()
        for s in range(N_SEQS):
            lo, hi = self.naive.range(s)
            if self.kind.has_state:
                lo = min(self.kept[s], default=-1)
            assert self.memory.pos_max(s) == hi
            assert self.memory.pos_min(s) == lo or (self.kind.n_swa and lo <= self.memory.pos_min(s))


def boom() -> None:
    raise Boom


@contextmanager
def failing(ctx: Context, at: int, act: Callable[[], None]) -> Iterator[None]:
    """Within, after the computation of the `at`-th ubatch, `act` is done."""
    get, left = ctx._plans.get, [at]

    @dataclass
    class Failing:
        plan: Any

        def run(self, inputs: Any) -> Any:
            results = self.plan.run(inputs)
            left[0] -= 1
            if left[0] == 0:
                act()
            return results

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctx._plans, "get", lambda key: Failing(get(key)))
        yield


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.usefixtures("on_each_backend")
def test_any_history_equals_computing_from_scratch(name: str, pytestconfig: pytest.Config) -> None:
    n = pytestconfig.getoption("--n-histories")
    how = settings(
        # What memory does is the same on both; on this one its cells move too.
        max_examples=n if backend_under_test() == "reference" else -(-n // 10),
        stateful_step_count=pytestconfig.getoption("--n-steps"),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(lambda: History(KINDS[name]), settings=how)
