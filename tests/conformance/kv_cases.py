"""Replays of recorded scripts on a KV cache: every operation, then the state of every cell."""

from __future__ import annotations

import copy
from itertools import groupby
from typing import Any

import numpy as np

from case import Verdict
from polyseq.batch import Batch, FlatBatch, Limits, check
from polyseq.errors import BatchError, CoupledSequences, NegativePosition, NoSlot, PolyseqError, SequenceError
from polyseq.memory import KvCache

N_VOCAB = 49152  # of the model the scripts were recorded on

IDS_OF = {
    "seq_rm": ("seq",),
    "seq_cp": ("src", "dst"),
    "seq_keep": ("seq",),
    "seq_add": ("seq",),
    "seq_div": ("seq",),
}


class Script:
    """A memory built from the recorded effective sizes, and what rules have said so far."""

    def __init__(self, case: dict[str, Any], verdict: Verdict) -> None:
        effective = case["effective"]
        self.case = case
        self.verdict = verdict
        self.n_batch: int = effective["n_batch"]
        self.n_ubatch: int = effective["n_ubatch"]
        self.unified: bool = case["requested"]["kv_unified"]
        self.memory = self.empty_memory()
        self.shift_differs = False  # D5: since a seq_div, until shifts are carried out
        self.n_stale = 0  # D6: copies that a clear cancelled here and left pending there, until carried out

    def empty_memory(self) -> Any:
        effective = self.case["effective"]
        return KvCache(n_cells=effective["kv_size"], n_seq_max=effective["n_seq_max"], unified=self.unified)

    # ---- what our side does ------------------------------------------------------------------------

    def run(self, op: dict[str, Any]) -> Any:
        memory = self.memory
        match op["op"]:
            case "decode":
                return self.decode(op)
            case "seq_rm":
                return memory.rm(op["seq"], op["p0"], op["p1"])
            case "seq_cp":
                return memory.cp(op["src"], op["dst"], op["p0"], op["p1"])
            case "seq_keep":
                return memory.keep(op["seq"])
            case "seq_add":
                return memory.add(op["seq"], op["p0"], op["p1"], op["delta"])
            case "seq_div":
                return memory.div(op["seq"], op["p0"], op["p1"], op["d"])
            case "clear":
                return memory.clear()
        raise ValueError(f"unknown operation {op['op']}")

    def decode(self, op: dict[str, Any]) -> int:
        """Check, settle what is pending, place, apply: 0, or 1 for no slot; errors are raised."""
        memory = self.memory
        limits = Limits(n_vocab=N_VOCAB, n_seq_max=memory.n_seq_max, n_batch=self.n_batch)
        checked = check(recorded_batch(op), limits, memory.ranges)
        memory.settle()
        self.shift_differs, self.n_stale = False, 0
        before = memory.columns()
        plan = memory.init_batch(checked, self.n_ubatch)
        self.verdict.holds("prepare leaves no trace", memory.columns() == before)
        if isinstance(plan, NoSlot):
            return 1
        for ubatch, slot in zip(plan.ubatches, plan.slots, strict=True):
            memory.apply(ubatch, slot)
        return 0

    # ---- one recorded operation --------------------------------------------------------------------

    def replay(self, i: int, op: dict[str, Any]) -> bool:
        """False where the recorded state cannot be followed any further."""
        what = f"op {i} {op['op']}"
        if op.get("probe"):
            self.probe(what, op)
            return True
        before = self.memory.columns()
        try:
            ours = self.run(op)
        except PolyseqError as error:
            return self.refused(what, op, error, unchanged=self.memory.columns() == before)
        if op["op"] == "decode":
            self.verdict.same(f"{what} rc", (ours, None), (op["rc"], op.get("reject") or op.get("split_error")))
        else:
            self.verdict.same(f"{what} rc", ours, op["rc"])
        self.note_rules(op)
        if ours == 1 and self.purged_by_refusal(op):
            self.verdict.rules.add("D7")
            return False
        self.compare_state(what, op["state"])
        self.memory.check()
        return self.verdict.passed

    def purged_by_refusal(self, op: dict[str, Any]) -> bool:
        """D7: whether a decode that found no room left fewer positions there; one cache has nothing to purge."""
        return False

    def refused(self, what: str, op: dict[str, Any], error: PolyseqError, *, unchanged: bool) -> bool:
        if isinstance(error, CoupledSequences):
            self.verdict.rules.add("D4")
            self.verdict.same(f"{what} split_error", error.code, op.get("split_error"))
            self.compare_state(what, op["state"])
            return True
        self.verdict.holds(f"{what}: a refused call changes nothing", unchanged)
        if isinstance(error, NegativePosition) and op.get("reject") != error.code:
            # D3: refused here, accepted or refused for something later there.
            self.verdict.rules.add("D3")
            self.verdict.holds(f"{what}: some position is negative", min(op["pos"]) < 0)
            return op["rc"] == -1 and self.verdict.passed
        if isinstance(error, BatchError):
            self.verdict.same(f"{what} reject", error.code, op.get("reject"))
            self.compare_state(what, op["state"])
            return self.verdict.passed
        rule = self.rule_of_refusal(op)
        if rule is None or not isinstance(error, SequenceError):
            self.verdict.differences.append(f"{what}: refused ({error}), recorded rc {op['rc']!r}")
        else:
            self.verdict.rules.add(rule)
        return False

    def rule_of_refusal(self, op: dict[str, Any]) -> str | None:
        """D8 for ids at or above n_seq_max, D6 for a part of a sequence between streams, D9 for other misuse."""
        ids = [op[name] for name in IDS_OF.get(op["op"], ())]
        if any(s >= self.memory.n_seq_max for s in ids):
            return "D8" if self.memory.n_stream == 1 else "D9"
        if op["op"] == "seq_cp" and min(ids) >= 0 and self.memory.n_stream > 1 and ids[0] != ids[1]:
            lo, hi = self.memory.pos_min(op["src"]), self.memory.pos_max(op["src"])
            whole = max(op["p0"], 0) <= lo and (op["p1"] < 0 or hi < op["p1"])
            return None if whole or lo < 0 else "D6"
        return "D9" if any(s < (-1 if op["op"] == "seq_rm" else 0) for s in ids) else None

    def probe(self, what: str, op: dict[str, Any]) -> None:
        """Misuse, tried on a copy: what ended the process there is an error here, or legal by our rules."""
        script = self.twin()
        try:
            script.run(op)
        except PolyseqError as error:
            rule = "D9" if isinstance(error, BatchError) else self.rule_of_refusal(op)
            self.verdict.holds(f"{what}: refused by a rule", rule is not None)
            self.verdict.rules.add(rule or "D9")
            return
        if op["rc"] == "abort" and op["op"] == "seq_cp" and self.memory.n_stream > 1:
            self.verdict.rules.add("D6")  # it covers all that the source holds, so it is whole here
        else:
            self.verdict.same(f"{what} rc", "ok", op["rc"])

    def twin(self) -> Script:
        """The same memory, to try something on."""
        other = copy.copy(self)
        other.memory = self.empty_memory()
        other.memory.cells = copy.deepcopy(self.memory.cells)
        return other

    def note_rules(self, op: dict[str, Any]) -> None:
        if op["op"] == "seq_div" and op["d"] != 1:
            self.shift_differs = True
        if op["op"] == "clear":
            self.shift_differs = False
            self.n_stale = len(op["state"].get("pending_copies", []))
            if self.n_stale:
                self.verdict.rules.add("D6")

    # ---- state -------------------------------------------------------------------------------------

    def compare_state(self, what: str, recorded: dict[str, Any]) -> None:
        memory, verdict = self.memory, self.verdict
        self.compare_streams(what, memory, recorded)
        self.compare_copies(what, recorded)
        seq_pos = [[memory.pos_min(s), memory.pos_max(s)] for s in range(memory.n_seq_max)]
        verdict.same(f"{what} seq_pos", seq_pos, recorded["seq_pos"])

    def compare_copies(self, what: str, recorded: dict[str, Any]) -> None:
        copies = [[src, dst] for _, src, dst in self.memory.pending().copies]
        self.verdict.same(f"{what} pending_copies", copies, recorded.get("pending_copies", [])[self.n_stale :])

    def compare_streams(self, what: str, cache: KvCache, recorded: dict[str, Any]) -> None:
        verdict = self.verdict
        for s, theirs in enumerate(recorded["streams"]):
            ours = stream_state(cache, s)
            if self.shift_differs:
                if ours["shift"] != theirs.get("shift", []):
                    verdict.rules.add("D5")
                # A net shift of zero here may be none there, and the other way round.
                theirs = {**theirs, "shift": ours["shift"], "has_shift": ours["has_shift"]}
            for name, value in ours.items():
                verdict.same(f"{what} stream {s} {name}", value, theirs.get(name, []))


def stream_state(memory: KvCache, s: int) -> dict[str, Any]:
    cells = memory.cells
    runs = memory.map().streams[s].runs
    return {
        "head": int(cells.head[s]),
        "used": int(cells.used[s]),
        "has_shift": bool(cells.has_shift[s]),
        "cells": [[r.first + i, r.pos + i, list(r.seq_ids)] for r in runs if r.seq_ids for i in range(r.count)],
        "shift": [[int(i), int(cells.shift[s, i])] for i in np.flatnonzero(cells.shift[s])],
    }


def recorded_batch(op: dict[str, Any]) -> Batch:
    """The flat form where it can say all, else runs of rows with and without a token."""
    tokens, pos, seq_ids, output = op["tokens"], op["pos"], op["seq_ids"], op["output"]
    if not tokens:
        return Batch()
    if -1 not in tokens:
        return FlatBatch(token=tokens, pos=pos, seq_id=seq_ids, output=output).to_batch()
    batch = Batch()
    n = len(tokens)
    seq_ids = seq_ids or [[0]] * n
    output = output or [0] * (n - 1) + [1]
    for has_token, group in groupby(range(n), lambda i: tokens[i] != -1):
        rows = list(group)
        at = slice(rows[0], rows[-1] + 1)
        batch.extend(
            tokens[at] if has_token else None,
            seq=seq_ids[at],
            pos=None if pos is None else pos[at],
            output=output[at],
        )
    return batch


def replay_kv(case: dict[str, Any]) -> Verdict:
    verdict = Verdict(case["name"])
    script = Script(case, verdict)
    script.compare_state("initial", case["initial"])
    for i, op in enumerate(case["ops"]):
        if not script.replay(i, op):
            break
    return verdict
