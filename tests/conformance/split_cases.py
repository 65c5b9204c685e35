"""Replays of recorded batches: check, then cut, then compare every field of every ubatch."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from case import Verdict
from polyseq.batch import Batch, CheckedBatch, Limits, SeqRanges, check
from polyseq.errors import BatchError, CoupledSequences, NegativePosition, SplitError
from polyseq.split import Equal, Seq, Simple, Splitter, Strategy, Ubatch

N_EMBD = 2


def replay_split(case: dict[str, Any]) -> Verdict:
    verdict = Verdict(case["name"])
    recorded = case["result"]
    try:
        checked = check_recorded(
            case["tokens"],
            Limits(
                n_vocab=case["n_vocab"],
                n_seq_max=case["n_seq_max"],
                n_pos=case["n_pos_per_embd"],
                output_all=case["output_all"],
            ),
            memory_ranges(case["n_seq_max"], case["mem"]),
        )
    except NegativePosition as refusal:
        # D3: a negative position is refused, where the recorded checks accept -1 or say something later.
        if recorded["accepted"] or recorded["reject"] != refusal.code:
            verdict.rules.add("D3")
        verdict.holds("some position is negative", min(min(t["pos"]) for t in case["tokens"]) < 0)
        return verdict
    except BatchError as refusal:
        verdict.same("reject", refusal.code, recorded.get("reject", "accepted"))
        return verdict
    if not verdict.same("accepted", True, recorded["accepted"]):
        return verdict
    verdict.same("n_outputs", checked.n_outputs, recorded["n_outputs"])
    _compare_cut(verdict, case, checked)
    return verdict


def check_recorded(tokens: list[dict[str, Any]], limits: Limits, ranges: SeqRanges) -> CheckedBatch:
    """The rows as columns, one run of equal content after the other, so that the check sees them all."""
    batch = Batch(n_pos=limits.n_pos)

    def kind(t: dict[str, Any]) -> tuple[bool, bool]:
        return t["id"] is not None, t["embd"]

    for (has_token, has_embd), group in groupby(tokens, kind):
        rows = list(group)
        pos = np.array([t["pos"] for t in rows]).T
        if not has_token and not has_embd:
            pos = np.resize(pos, (limits.n_pos, len(rows)))
        batch.extend(
            [t["id"] for t in rows] if has_token else None,
            seq=[t["seq_ids"] for t in rows],
            pos=pos,
            output=[t["output"] for t in rows],
            embd=np.zeros((len(rows), N_EMBD)) if has_embd else None,
        )
    return check(batch, limits, ranges)


def memory_ranges(n_seq_max: int, held: list[list[int]] | None) -> SeqRanges:
    ranges = SeqRanges(np.full(max(n_seq_max, 1), -1, np.int32), np.full(max(n_seq_max, 1), -1, np.int32))
    for seq_id, lo, hi in held or []:
        ranges.pos_min[seq_id], ranges.pos_max[seq_id] = lo, hi
    return ranges


def strategy(mode: dict[str, Any]) -> Strategy:
    if mode["kind"] == "equal":
        return Equal(sequential=mode["sequential"], n_keep_tail=mode["n_keep_tail"])
    return {"simple": Simple(), "seq": Seq()}[mode["kind"]]


def _compare_cut(verdict: Verdict, case: dict[str, Any], checked: CheckedBatch) -> None:
    recorded = case["result"]
    splitter, cut = Splitter(checked), strategy(case["mode"])
    n_ubatch = case["n_ubatch"]
    if n_ubatch == 0:
        verdict.rules.add("D1")
        _refuses(verdict, splitter, cut, 0)
        n_ubatch = 1
    if case["mode"].get("n_keep_tail", 0) >= n_ubatch:
        # The recorded cut has no say about a tail that cannot fit: D1's overflow, or a torn tail.
        verdict.rules.add("D1")
        _refuses(verdict, splitter, cut, n_ubatch)
        return
    ubatches: list[Ubatch] = []
    try:
        while (ubatch := splitter.split(cut, n_ubatch)) is not None:
            ubatches.append(ubatch)
            splitter.check()
    except CoupledSequences as refusal:
        verdict.same("split_error", refusal.code, recorded.get("split_error"))
        verdict.same("n_used", splitter.n_used, recorded["n_used"])
        return
    differs = _rules(case, checked)
    if differs:
        verdict.rules |= differs
        _holds_anyway(verdict, checked, ubatches, n_ubatch, cut)
        return
    verdict.same("split_error", None, recorded.get("split_error"))
    verdict.same("number of ubatches", len(ubatches), len(recorded["ubatches"]))
    for i, (ours, theirs) in enumerate(zip(ubatches, recorded["ubatches"], strict=False)):
        for name, value in ubatch_fields(ours).items():
            verdict.same(f"ubatch {i} {name}", value, theirs[name])
    verdict.same("out_ids", splitter.out_ids.tolist(), recorded["out_ids"])
    verdict.same("n_used", splitter.n_used, recorded["n_used"])
    verdict.same("all_used", splitter.n_left == 0, recorded["all_used"])


def _refuses(verdict: Verdict, splitter: Splitter, cut: Strategy, n_ubatch: int) -> None:
    try:
        splitter.split(cut, n_ubatch)
    except SplitError:
        verdict.same("rows used by a refused cut", splitter.n_used, 0)
    else:
        verdict.differences.append(f"a cut into ubatches of {n_ubatch} was not refused")


def ubatch_fields(ubatch: Ubatch) -> dict[str, Any]:
    return {
        "n_tokens": ubatch.n_tokens,
        "n_seq_tokens": ubatch.n_seq_tokens,
        "n_seqs": ubatch.n_seqs,
        "n_seqs_unq": ubatch.n_seqs_unq,
        "equal_seqs": ubatch.equal_seqs,
        "batch_idxs": ubatch.batch_idxs.tolist(),
        "pos": ubatch.pos.reshape(-1).tolist(),
        "seq_ids": [ubatch.row_seq_ids(i) for i in range(ubatch.n_tokens)],
        "seq_id_unq": ubatch.seq_id_unq.tolist(),
        "output": ubatch.output.astype(int).tolist(),
    }


def _rules(case: dict[str, Any], checked: CheckedBatch) -> set[str]:
    """Which rules say that the recorded cut is not ours."""
    recorded = case["result"]["ubatches"]
    n_ubatch = max(case["n_ubatch"], 1)
    rules = set()
    if any(u["n_tokens"] > n_ubatch for u in recorded):
        rules.add("D1")
    if case["mode"]["kind"] == "simple" or not checked.coupled:
        return rules
    flattened = [row for u in recorded for row in u["batch_idxs"]]
    if _runs_backwards(checked, flattened) or (case["mode"].get("n_keep_tail") and _overlapping_unequal(checked)):
        rules.add("D2")
    return rules


def _runs_backwards(checked: CheckedBatch, rows: list[int]) -> bool:
    last: dict[int, int] = {}
    for row in rows:
        for s in checked.seq_ids[checked.seq_offsets[row] : checked.seq_offsets[row + 1]]:
            if last.get(int(s), -1) > row:
                return True
            last[int(s)] = row
    return False


def _overlapping_unequal(checked: CheckedBatch) -> bool:
    sets = checked.sets
    overlaps = (sets[:, None] & sets[None]).any(axis=2)
    return bool((overlaps & ~np.eye(len(sets), dtype=bool)).any())


def _holds_anyway(
    verdict: Verdict, checked: CheckedBatch, ubatches: list[Ubatch], n_ubatch: int, cut: Strategy
) -> None:
    """Our side of D1 and D2."""
    rows = [int(r) for u in ubatches for r in u.batch_idxs]
    verdict.holds("every row used exactly once", sorted(rows) == list(range(checked.n_tokens)))
    verdict.holds("n_tokens <= n_ubatch", all(u.n_tokens <= n_ubatch for u in ubatches))
    verdict.holds("sequences run forwards", not _runs_backwards(checked, rows))
    if isinstance(cut, Equal):
        rectangular = all(u.n_seqs * u.n_seq_tokens == u.n_tokens for u in ubatches)
        verdict.holds("equal ubatches are rectangular", rectangular)
