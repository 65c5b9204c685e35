"""Replays of recorded scripts on the pair of a full and a sliding-window cache."""

from __future__ import annotations

import copy
from typing import Any

from case import Verdict
from kv_cases import Script
from polyseq.memory import KvCache, KvLayer, MemorySettings, cache_parts, make_memory
from polyseq.memory.window_pair import WindowPair

LAYER = {"n_head_kv": 1, "n_embd_head_k": 256, "n_embd_head_v": 256}


class SwaScript(Script):
    """The same operations on two caches; the pair is made from the sizes asked for, padded as recorded."""

    def empty_memory(self) -> WindowPair:
        effective = self.case["effective"]
        settings = MemorySettings(
            layers=(KvLayer(**LAYER, n_swa=effective["n_swa"]), KvLayer(**LAYER)),
            n_cells=effective["kv_size"]["base"],
            n_seq_max=effective["n_seq_max"],
            unified=self.unified,
            n_ubatch=effective["n_ubatch"],
            swa_full=self.case["requested"]["swa_full"],
        )
        sizes = {part.name: part.n_cells for part in cache_parts(settings)}
        recorded = effective["kv_size"]
        self.verdict.same("window cells", sizes, {"kv": recorded["base"], "kv_swa": recorded["swa"]})
        memory = make_memory(settings)
        assert isinstance(memory, WindowPair)
        return memory

    def compare_streams(self, what: str, cache: Any, recorded: dict[str, Any]) -> None:
        for name, one in (("base", cache.kv), ("swa", cache.kv_swa)):
            streams = [expanded(stream) for stream in recorded[name]["streams"]]
            super().compare_streams(f"{what} {name}", one, {"streams": streams})

    def compare_copies(self, what: str, recorded: dict[str, Any]) -> None:
        """Not recorded for pairs: both caches owe the same."""
        kv, kv_swa = (cache.pending().copies for cache in (self.memory.kv, self.memory.kv_swa))
        self.verdict.same(f"{what} copies of both", [c[1:] for c in kv], [c[1:] for c in kv_swa])

    def purged_by_refusal(self, op: dict[str, Any]) -> bool:
        """D7: the recorded window cache holds less than ours, which a refused call does not change."""
        for stream, theirs in enumerate(op["state"]["swa"]["streams"]):
            ours = held(self.memory.kv_swa, stream)
            recorded = {(cell, pos, s) for cell, pos, seqs in expanded(theirs)["cells"] for s in seqs}
            if recorded < ours:
                return True
        return False

    def twin(self) -> Script:
        other = copy.copy(self)
        other.memory = self.empty_memory()
        for name in ("kv", "kv_swa"):
            getattr(other.memory, name).cells = copy.deepcopy(getattr(self.memory, name).cells)
        return other


def expanded(stream: dict[str, Any]) -> dict[str, Any]:
    """Runs of cells and shifts, cell by cell as a single cache's are recorded."""
    return {
        **stream,
        "cells": [[i + j, pos + j, seqs] for i, pos, n, seqs in stream["runs"] for j in range(n)],
        "shift": [[i + j, shift] for i, shift, n in stream.get("shift_runs", []) for j in range(n)],
    }


def held(cache: KvCache, stream: int) -> set[tuple[int, int, int]]:
    """(cell, position, sequence) of all that a stream holds."""
    runs = cache.map().streams[stream].runs
    return {(r.first + i, r.pos + i, s) for r in runs for s in r.seq_ids for i in range(r.count)}


def replay_swa(case: dict[str, Any]) -> Verdict:
    verdict = Verdict(case["name"])
    script = SwaScript(case, verdict)
    script.compare_state("initial", case["initial"])
    for i, op in enumerate(case["ops"]):
        if not script.replay(i, op):
            break
    return verdict
